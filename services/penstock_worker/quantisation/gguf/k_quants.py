"""What several K-quants have in common: super-blocks of 256 elements, in eight groups of 32 with a
6-bit scale and minimum each, in units of one float16 for the scales and one for the minima."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_worker.quantisation.gguf.blocks import half, nibbles


def k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Unpacks eight 6-bit scales and minima from 12 bytes; each [blocks, 8] uint8."""
    low, middle, high = packed.split(4, -1)
    scales = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), -1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), -1)
    return scales, minima


def k_nibbles(packed: Tensor) -> Tensor:
    """Unpacks 128 bytes to [blocks, 8, 32]. Each of the four runs of 32 bytes has first one group's
    values as low nibbles, then the next one's as high nibbles."""
    return nibbles(packed.unflatten(-1, (4, 32))).reshape(-1, 8, 32)


def k_values(blocks: Tensor, levels: Tensor) -> Tensor:
    """Dequantises levels [blocks, 8, 32] to [blocks, 256] float32, by each group's scale and
    minimum."""
    scales, minima = k_scales(blocks[:, 4:16])
    scales = half(blocks, 0).float() * scales.float()
    minima = half(blocks, 2).float() * minima.float()
    return (scales[:, :, None] * levels.float() - minima[:, :, None]).flatten(1)


def k_factors(blocks: Tensor) -> dict[str, Tensor]:
    """Returns scales and minima with their units for GGUFWeights. The file's format subtracts
    minima and GGUFWeights adds them, so their unit is negated."""
    scales, minima = k_scales(blocks[:, 4:16])
    return {
        "scales": scales,
        "minima": minima,
        "units": half(blocks, 0),
        "unit_minima": -half(blocks, 2),
    }
