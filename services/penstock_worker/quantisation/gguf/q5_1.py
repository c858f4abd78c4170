"""Q5_1: blocks of 32 5-bit values, whose fifth bits are stored separately, with a scale and a
minimum."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import fifth_bits, gguf_format, half, nibbles


def _decode(blocks: Tensor) -> Tensor:
    levels = nibbles(blocks[:, 8:]) | fifth_bits(blocks, 4)
    return half(blocks, 0).float() * levels.float() + half(blocks, 2).float()


def _split(blocks: Tensor) -> dict[str, Tensor]:
    high = blocks[:, 4:8].contiguous().view(torch.int32)[:, :, None]
    return {
        "levels": blocks[:, None, 8:],
        "high": high,
        "scales": half(blocks, 0),
        "minima": half(blocks, 2),
    }


Q5_1 = gguf_format("Q5_1", _decode, layout=Layout(5, minima=True), split=_split, packed=True)
