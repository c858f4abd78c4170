"""Pieces that the blocks of several GGUF types are made of.

Source of the layouts: the block structs of the ggml project (ggml-common.h).  A value is computed
as ggml's own dequantisation does it, one rounding for each operation, so the bits agree.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.formats.gguf_types import BLOCKS
from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.interface import KeptForm, StoredFormat


def gguf_format(
    name: str,
    decode: Callable[[Tensor], Tensor],
    *,
    layout: Layout | None = None,
    split: Callable[[Tensor], dict[str, Tensor]] | None = None,
    packed: bool = False,
) -> StoredFormat:
    """A quantised type of GGUF files. decode, packed: see StoredFormat.  layout, split: see
    KeptForm; None where the Triton kernels have no product for the type."""
    kept = KeptForm(layout, split) if layout is not None and split is not None else None
    return StoredFormat(name, *BLOCKS[name], decode, packed=packed, kept=kept)


def half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of each block. [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16)


def nibbles(packed: Tensor) -> Tensor:
    """[..., n] bytes -> [..., 2 n]: all low halves, then all high halves."""
    return torch.cat((packed & 15, packed >> 4), -1)


def fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """32 bits at byte `start`, as the 5th bit of 32 values. [blocks, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (blocks[:, start : start + 4, None] >> shifts) & 1
    return bits.flatten(1) << 4


def signed(blocks: Tensor, start: int, stop: int) -> Tensor:
    """The signed bytes from `start` to `stop` of each block. [blocks, stop - start] int8."""
    return blocks[:, start:stop].contiguous().view(torch.int8)


def packed_nibbles(levels: Tensor) -> Tensor:
    """[blocks, groups, 32] whole numbers -> their lower 4 bits as bytes [blocks, groups, 16]."""
    return (levels[..., :16] & 15) | (levels[..., 16:] & 15) << 4


def bit_planes(levels: Tensor, bits: int) -> Tensor:
    """[blocks, groups, 32] whole numbers -> their bits from the fifth on, [blocks, groups,
    bits - 4] int32."""
    weights = 1 << torch.arange(32, dtype=torch.int64)
    planes = [
        ((levels.long() >> bit & 1) * weights).sum(-1) for bit in range(4, bits)
    ]  # Up to 2**32 - 1: the upper half becomes negative in int32.
    return torch.stack(planes, -1).to(torch.int32)
