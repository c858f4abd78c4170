"""Q3_K: super-blocks of 256 3-bit values with offset 4, whose third bits are stored separately, in
groups of 16 with a 6-bit scale each, in units of one float16."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import (
    gguf_format,
    group_bits,
    half,
    nibbles,
    packed_nibbles,
    two_bit_levels,
)


def _levels(blocks: Tensor) -> Tensor:
    """Returns [blocks, 8, 32] uint8, from 0 to 7, where 4 stands for zero."""
    return two_bit_levels(blocks[:, 32:96]) | group_bits(blocks[:, :32]) << 2


def _scales(blocks: Tensor) -> Tensor:
    """Returns [blocks, 16] int8, from -32 to 31. Scale i has its four low bits in nibble i of eight
    bytes (low nibbles first), and its two high bits in the four bytes after them: those of the
    first four scales are the lowest of each byte."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = ((blocks[:, None, 104:108] >> shifts) & 3).flatten(1)
    return (nibbles(blocks[:, 96:104]) | high << 4).to(torch.int8) - 32


def _decode(blocks: Tensor) -> Tensor:
    scales = half(blocks, 108).float() * _scales(blocks).float()
    values = _levels(blocks).reshape(-1, 16, 16).float() - 4
    return (scales[:, :, None] * values).flatten(1)


def _split(blocks: Tensor) -> dict[str, Tensor]:
    return {
        "levels": packed_nibbles(_levels(blocks)),
        "scales": _scales(blocks),
        "units": half(blocks, 108),
    }


_LAYOUT = Layout(4, offset=4, group=16, factors=torch.int8)

Q3_K = gguf_format("Q3_K", _decode, layout=_LAYOUT, split=_split, packed=True)
