"""Q6_K: super-blocks of 256 6-bit values with offset 32, in groups of 16 with an int8 scale each,
in units of one float16."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import (
    bit_planes,
    gguf_format,
    half,
    nibbles,
    packed_nibbles,
    signed,
    two_bit_levels,
)


def _levels(blocks: Tensor) -> Tensor:
    """Returns [blocks, 8, 32] uint8, from 0 to 63, where 32 stands for zero."""
    low = nibbles(blocks[:, :128].unflatten(-1, (2, 64))).reshape(-1, 8, 32)
    return low | two_bit_levels(blocks[:, 128:192]) << 4


def _decode(blocks: Tensor) -> Tensor:
    values = _levels(blocks).float() - 32
    scales = half(blocks, 208).float() * signed(blocks, 192, 208).float()
    return (scales[:, :, None] * values.reshape(-1, 16, 16)).flatten(1)


def _split(blocks: Tensor) -> dict[str, Tensor]:
    levels = _levels(blocks)
    return {
        "levels": packed_nibbles(levels),
        "high": bit_planes(levels, 6),
        "scales": blocks[:, 192:208].view(torch.int8),
        "units": half(blocks, 208),
    }


_LAYOUT = Layout(6, offset=32, group=16, factors=torch.int8)

Q6_K = gguf_format("Q6_K", _decode, layout=_LAYOUT, split=_split, packed=True)
