"""Q2_K: super-blocks of 256 2-bit values, in groups of 16 with a 4-bit scale and minimum each, in
units of one float16 for the scales and one for the minima."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import (
    gguf_format,
    half,
    packed_nibbles,
    two_bit_levels,
)


def _decode(blocks: Tensor) -> Tensor:
    scales = half(blocks, 80).float() * (blocks[:, :16] & 15).float()
    minima = half(blocks, 82).float() * (blocks[:, :16] >> 4).float()
    levels = two_bit_levels(blocks[:, 16:80]).reshape(-1, 16, 16).float()
    return (scales[:, :, None] * levels - minima[:, :, None]).flatten(1)


def _split(blocks: Tensor) -> dict[str, Tensor]:
    return {
        "levels": packed_nibbles(two_bit_levels(blocks[:, 16:80])),
        "scales": blocks[:, :16] & 15,
        "minima": blocks[:, :16] >> 4,
        "units": half(blocks, 80),
        "unit_minima": -half(blocks, 82),  # The file's format subtracts minima.
    }


_LAYOUT = Layout(4, group=16, minima=True, factors=torch.uint8)

Q2_K = gguf_format("Q2_K", _decode, layout=_LAYOUT, split=_split, packed=True)
