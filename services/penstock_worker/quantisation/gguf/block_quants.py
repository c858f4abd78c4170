"""Types with blocks of 32 values that share a scale, and in some a minimum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import fifth_bits, gguf_format, half, nibbles, signed

if TYPE_CHECKING:
    from torch import Tensor


def _decode_q4_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0).float() * (nibbles(blocks[:, 2:]).float() - 8)


def _split_q4_0(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": blocks[:, None, 2:], "scales": half(blocks, 0)}


Q4_0 = gguf_format("Q4_0", _decode_q4_0, layout=Layout(4, offset=8), split=_split_q4_0, packed=True)
"""Blocks of 32 4-bit values with offset 8, and a scale."""


def _decode_q4_1(blocks: Tensor) -> Tensor:
    return half(blocks, 0).float() * nibbles(blocks[:, 4:]).float() + half(blocks, 2).float()


def _split_q4_1(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": blocks[:, None, 4:], "scales": half(blocks, 0), "minima": half(blocks, 2)}


Q4_1 = gguf_format(
    "Q4_1", _decode_q4_1, layout=Layout(4, minima=True), split=_split_q4_1, packed=True
)
"""Blocks of 32 4-bit values, with a scale and a minimum."""


def _decode_q5_0(blocks: Tensor) -> Tensor:
    levels = nibbles(blocks[:, 6:]) | fifth_bits(blocks, 2)
    return half(blocks, 0).float() * (levels.float() - 16)


def _whole(blocks: Tensor, start: int) -> Tensor:
    """Returns four bytes as one number, [blocks, 1, 1] int32. A copy in any case: a single block's
    bytes are contiguous, but not aligned for an int32."""
    copied = blocks[:, start : start + 4].clone(memory_format=torch.contiguous_format)
    return copied.view(torch.int32)[:, :, None]


def _split_q5_0(blocks: Tensor) -> dict[str, Tensor]:
    high = _whole(blocks, 2)
    return {"levels": blocks[:, None, 6:], "high": high, "scales": half(blocks, 0)}


Q5_0 = gguf_format(
    "Q5_0", _decode_q5_0, layout=Layout(5, offset=16), split=_split_q5_0, packed=True
)
"""Blocks of 32 5-bit values with offset 16, whose fifth bits are stored separately, and a scale."""


def _decode_q5_1(blocks: Tensor) -> Tensor:
    levels = nibbles(blocks[:, 8:]) | fifth_bits(blocks, 4)
    return half(blocks, 0).float() * levels.float() + half(blocks, 2).float()


def _split_q5_1(blocks: Tensor) -> dict[str, Tensor]:
    high = _whole(blocks, 4)
    return {
        "levels": blocks[:, None, 8:],
        "high": high,
        "scales": half(blocks, 0),
        "minima": half(blocks, 2),
    }


Q5_1 = gguf_format(
    "Q5_1", _decode_q5_1, layout=Layout(5, minima=True), split=_split_q5_1, packed=True
)
"""Blocks of 32 5-bit values, whose fifth bits are stored separately, with a scale and a minimum."""


def _decode_q8_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0).float() * signed(blocks, 2, 34).float()


def _split_q8_0(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": blocks[:, None, 2:].view(torch.int8), "scales": half(blocks, 0)}


Q8_0 = gguf_format("Q8_0", _decode_q8_0, layout=Layout(8), split=_split_q8_0, packed=True)
"""Blocks of 32 signed bytes, and a scale."""
