"""Types of one and two bits: a float16 for many values, which it is multiplied by -1, 0, 1 or 2."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch

from penstock_kernels.cpu.matrix import MatrixKind
from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import (
    bits_of,
    grouped_format,
    half,
    packed_nibbles,
    two_bit_levels,
)
from penstock_worker.quantisation.interface import Groups, KeptForm, StoredFormat

if TYPE_CHECKING:
    from torch import Tensor


def _groups(levels: Tensor, unit: Tensor) -> Groups:
    """levels: [blocks, values], one more than what the unit, [blocks, 1], is multiplied by."""
    by_group = levels.to(torch.uint8).unflatten(-1, (-1, 32))
    scales = unit.float().expand(by_group.shape[:2])
    return Groups(by_group, scales, -scales)


@cache
def _digits_of_bytes() -> Tensor:
    """Returns [5 digits, 256 bytes] uint8."""
    return ((torch.arange(256) * 3 ** torch.arange(5)[:, None] & 255) * 3 >> 8).to(torch.uint8)


def _digits(packed: Tensor, count: int) -> Tensor:
    """Returns [blocks, count * bytes]: the first digit of all bytes, then the second, …"""
    places = packed.long()
    of_byte = _digits_of_bytes()
    return torch.cat([of_byte[digit][places] for digit in range(count)], 1)


def _tq1_0(blocks: Tensor) -> Groups:
    """TQ1_0: 256 values, of which five or four are the digits of a number in base 3, stored as a
    fraction of 256: the first one is the highest."""
    digits = (
        _digits(blocks[:, :32], 5),
        _digits(blocks[:, 32:48], 5),
        _digits(blocks[:, 48:52], 4),
    )
    return _groups(torch.cat(digits, -1), half(blocks, 52))


def _tq2_0(blocks: Tensor) -> Groups:
    """TQ2_0: 256 values of two bits."""
    return _groups(two_bit_levels(blocks[:, :64]).flatten(1), half(blocks, 64))


def _q2_0(blocks: Tensor) -> Groups:
    """Q2_0: 64 values of two bits, four neighbours to a byte."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    levels = (blocks[:, 2:, None] >> shifts) & 3
    return _groups(levels.flatten(1), half(blocks, 0))


def _q1_0(blocks: Tensor) -> Groups:
    """Q1_0: 128 signs: 1 is positive."""
    return _groups(2 * bits_of(blocks[:, 2:]), half(blocks, 0))


def _format(name: str, read: Callable[[Tensor], Groups]) -> StoredFormat:
    def split(blocks: Tensor) -> dict[str, Tensor]:
        levels, scales, _ = read(blocks)
        return {"levels": packed_nibbles(levels), "scales": scales.half()}

    kept = KeptForm(Layout(4, offset=1), split)
    return grouped_format(name, read, MatrixKind.U4H, kept=kept)


TERNARY_QUANTS = (
    _format("TQ1_0", _tq1_0),
    _format("TQ2_0", _tq2_0),
    _format("Q2_0", _q2_0),
    _format("Q1_0", _q1_0),
)
