"""How elements are stored in weight files: blocks of bytes, and how each becomes float32.

Source of the quantised layouts: the block structs of the ggml project (ggml-common.h).  A value is
computed as ggml's own dequantisation does it, one rounding per operation, so the bits agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class StoredFormat(NamedTuple):
    """decode: uint8 [blocks, bytes] -> [blocks, elements], float32 or, of a plain format, its own
    dtype."""

    elements: int
    bytes: int
    decode: Callable[[Tensor], Tensor]


def _plain(dtype: torch.dtype) -> StoredFormat:
    def decode(blocks: Tensor) -> Tensor:
        return blocks.view(dtype)

    return StoredFormat(1, dtype.itemsize, decode)


def _half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of each block. [blocks, 1] float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[..., n] bytes -> [..., 2 n]: all low halves, then all high halves."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """32 bits at byte `start`, as the 5th bit of 32 values. [blocks, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (blocks[:, start : start + 4, None] >> shifts) & 1
    return bits.flatten(1) << 4


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (values.float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * values.float() + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8).float()


def k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight 6-bit scales and minima from 12 bytes. Each [blocks, 8] uint8."""
    low, middle, high = packed.split(4, -1)
    scales = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), -1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), -1)
    return scales, minima


def _k_blocks(blocks: Tensor, values: Tensor) -> Tensor:
    """values: [blocks, 8, 32], to be scaled by each group's own scale and minimum."""
    scales, minima = k_scales(blocks[:, 4:16])
    scales = _half(blocks, 0) * scales.float()
    minima = _half(blocks, 2) * minima.float()
    return (scales[:, :, None] * values.float() - minima[:, :, None]).flatten(1)


def k_nibbles(packed: Tensor) -> Tensor:
    """128 bytes, in four runs of 32: the low halves of a run, then its high halves."""
    return _nibbles(packed.unflatten(-1, (4, 32))).reshape(-1, 8, 32)


def _q4_k(blocks: Tensor) -> Tensor:
    return _k_blocks(blocks, k_nibbles(blocks[:, 16:]))


def q5_k_levels(blocks: Tensor) -> Tensor:
    """[blocks, 8, 32] uint8, 0 to 31."""
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    fifth = ((blocks[:, None, 16:48] >> shifts) & 1) << 4
    return k_nibbles(blocks[:, 48:]) | fifth


def _q5_k(blocks: Tensor) -> Tensor:
    return _k_blocks(blocks, q5_k_levels(blocks))


def q6_k_levels(blocks: Tensor) -> Tensor:
    """[blocks, 8, 32] uint8, 0 to 63, of which 32 means 0."""
    low = _nibbles(blocks[:, :128].unflatten(-1, (2, 64))).reshape(-1, 8, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 8, 32)
    return low | (high << 4)


def _q6_k(blocks: Tensor) -> Tensor:
    values = q6_k_levels(blocks).float() - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    return (scales[:, :, None] * values.reshape(-1, 16, 16)).flatten(1)


FORMATS: dict[str, StoredFormat] = {
    "F32": _plain(torch.float32),
    "F16": _plain(torch.float16),
    "BF16": _plain(torch.bfloat16),
    "Q4_0": StoredFormat(32, 18, _q4_0),
    "Q4_1": StoredFormat(32, 20, _q4_1),
    "Q5_0": StoredFormat(32, 22, _q5_0),
    "Q5_1": StoredFormat(32, 24, _q5_1),
    "Q8_0": StoredFormat(32, 34, _q8_0),
    "Q4_K": StoredFormat(256, 144, _q4_k),
    "Q5_K": StoredFormat(256, 176, _q5_k),
    "Q6_K": StoredFormat(256, 210, _q6_k),
}
"""By the name that GGUF and safetensors give the type."""
