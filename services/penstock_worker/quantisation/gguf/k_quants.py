"""Pieces that several K-quants share: super-blocks of 256 elements, whose eight groups of 32 have
6-bit scales and minima in units of a float16 each."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_worker.quantisation.gguf.blocks import half, nibbles


def k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight 6-bit scales and minima from 12 bytes. Each [blocks, 8] uint8."""
    low, middle, high = packed.split(4, -1)
    scales = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), -1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), -1)
    return scales, minima


def k_nibbles(packed: Tensor) -> Tensor:
    """128 bytes, in four runs of 32: the low halves of a run, then its high halves. [blocks, 8,
    32]."""
    return nibbles(packed.unflatten(-1, (4, 32))).reshape(-1, 8, 32)


def k_values(blocks: Tensor, levels: Tensor) -> Tensor:
    """levels: [blocks, 8, 32] -> [blocks, 256] float32, scaled by each group's own scale and
    minimum."""
    scales, minima = k_scales(blocks[:, 4:16])
    scales = half(blocks, 0).float() * scales.float()
    minima = half(blocks, 2).float() * minima.float()
    return (scales[:, :, None] * levels.float() - minima[:, :, None]).flatten(1)


def k_factors(blocks: Tensor) -> dict[str, Tensor]:
    """Scales and minima, and their units, for GGUFWeights. What the file subtracts is added
    there."""
    scales, minima = k_scales(blocks[:, 4:16])
    return {
        "scales": scales,
        "minima": minima,
        "units": half(blocks, 0),
        "unit_minima": -half(blocks, 2),
    }
