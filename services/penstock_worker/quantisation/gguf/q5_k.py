"""Q5_K: the K-quant of 5-bit values, whose fifth bits are stored separately."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import (
    bit_planes,
    gguf_format,
    group_bits,
    packed_nibbles,
)
from penstock_worker.quantisation.gguf.k_quants import k_factors, k_nibbles, k_values


def _levels(blocks: Tensor) -> Tensor:
    """Returns [blocks, 8, 32] uint8, from 0 to 31."""
    return k_nibbles(blocks[:, 48:]) | group_bits(blocks[:, 16:48]) << 4


def _decode(blocks: Tensor) -> Tensor:
    return k_values(blocks, _levels(blocks))


def _split(blocks: Tensor) -> dict[str, Tensor]:
    levels = _levels(blocks)
    return k_factors(blocks) | {"levels": packed_nibbles(levels), "high": bit_planes(levels, 5)}


_LAYOUT = Layout(5, minima=True, factors=torch.uint8)

Q5_K = gguf_format("Q5_K", _decode, layout=_LAYOUT, split=_split, packed=True)
