"""Types of one to three bits, whose values are vectors of a grid, with a sign of each or a shift of
several.

A vector's levels with its signs lie in a table, as one number of 8 or 4 bytes for each combination:
a look-up gives all of them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from penstock_kernels.cpu.matrix import MatrixKind
from penstock_worker.quantisation.gguf.blocks import (
    bits_of,
    grouped_format,
    half,
    nibbles_in_turn,
    words,
)
from penstock_worker.quantisation.gguf.grids import (
    IQ1,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ3_S,
    IQ3_XXS,
    Grid,
    vectors,
)
from penstock_worker.quantisation.interface import Groups

if TYPE_CHECKING:
    from torch import Tensor

PARITY = 128
"""Combinations of 7 signs, which an eighth completes: an even number of values is negative."""


def _completed(signs: Tensor) -> Tensor:
    """Maps 7 signs, below 128, to 8, of the same dtype."""
    parity = sum((signs >> bit) & 1 for bit in range(7)) & 1
    return signs | parity << 7


@cache
def _with_signs(grid: Grid, combinations: int) -> Tensor:
    """Returns [vectors * combinations] int64 or int32: each vector with each combination of signs,
    of which the lowest bit is the first value's, and 1 means that it is negative."""
    found = vectors(grid)
    signs = torch.arange(combinations)
    if combinations == PARITY:
        signs = _completed(signs)
    negative = (signs[:, None] >> torch.arange(grid.length)) & 1
    return _as_numbers(found[:, None] * (1 - 2 * negative).to(torch.int8)[None])


def _as_numbers(levels: Tensor) -> Tensor:
    """Maps [..., 8 or 4] bytes to int64 or int32 numbers, contiguous."""
    kind = torch.int64 if levels.shape[-1] == 8 else torch.int32
    return levels.contiguous().flatten(0, -2).view(kind).flatten()


def _looked_up(table: Tensor, places: Tensor, group: int) -> Tensor:
    """Returns [blocks, groups, group] int8: the table's levels at [blocks, vectors]."""
    found = table[places.long()].view(torch.int8)
    return found.unflatten(-1, (-1, group))


def _scales(blocks: Tensor, numbers: Tensor, share: float) -> Tensor:
    """Returns the block's float16 times odd numbers, 2 * numbers + 1, times a power of two."""
    return half(blocks, 0).float() * (2 * numbers + 1).float() * share


def _four_signs(word: Tensor) -> Tensor:
    """Returns four times 7 signs of words of 32 bits, [blocks, 4 * words]."""
    return ((word[..., None] >> torch.tensor([0, 7, 14, 21])) & 127).flatten(1)


def _iq2_xxs(blocks: Tensor) -> Groups:
    """IQ2_XXS: super-blocks of 256 values, in groups of 32: four vectors of 8, four times 7 signs,
    and a 4-bit scale."""
    by_group = blocks[:, 2:].unflatten(-1, (8, 8))
    word = words(by_group[..., 4:].flatten(1), 4)
    places = by_group[..., :4].flatten(1).long() * PARITY + _four_signs(word)
    levels = _looked_up(_with_signs(IQ2_XXS, PARITY), places, 32)
    return Groups(levels, _scales(blocks, word >> 28, 1 / 8))


def _iq2_xs(blocks: Tensor) -> Groups:
    """IQ2_XS: as IQ2_XXS, with a 4-bit scale for 16 values, and numbers of 9 bits with 7 signs
    each."""
    both, scales = words(blocks[:, 2:66], 2), nibbles_in_turn(blocks[:, 66:])
    places = (both & 511) * PARITY + (both >> 9)
    levels = _looked_up(_with_signs(IQ2_XS, PARITY), places, 16)
    return Groups(levels, _scales(blocks, scales, 1 / 8))


def _iq2_s(blocks: Tensor) -> Groups:
    """IQ2_S: as IQ2_XS, with all signs, and numbers of 10 bits, whose upper ones are stored
    separately."""
    upper = (blocks[:, 66:74, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)) & 3
    numbers = blocks[:, 2:34].long() | upper.flatten(1).long() << 8
    levels = _looked_up(_with_signs(IQ2_S, 256), numbers * 256 + blocks[:, 34:66], 16)
    return Groups(levels, _scales(blocks, nibbles_in_turn(blocks[:, 74:]), 1 / 8))


def _iq3_xxs(blocks: Tensor) -> Groups:
    """IQ3_XXS: super-blocks of 256 values, in groups of 32: eight vectors of 4, four times 7 signs,
    and a 4-bit scale."""
    word = words(blocks[:, 66:], 4)
    signs = nibbles_in_turn(_completed(_four_signs(word)))
    levels = _looked_up(_with_signs(IQ3_XXS, 16), blocks[:, 2:66].long() * 16 + signs, 32)
    return Groups(levels, _scales(blocks, word >> 28, 1 / 4))


@cache
def _iq3_s_levels() -> Tensor:
    values = _with_signs(IQ3_S, 16).view(torch.int8).unflatten(0, (-1, 4))
    return _as_numbers((values + 15) >> 1)


def _iq3_s(blocks: Tensor) -> Groups:
    """IQ3_S: as IQ3_XXS, with all signs, and numbers of 9 bits, whose highest ones are stored
    separately. Values are odd numbers from -15 to 15."""
    numbers = blocks[:, 2:66].long() | bits_of(blocks[:, 66:74]).long() << 8
    signs = nibbles_in_turn(blocks[:, 74:106])
    levels = _looked_up(_iq3_s_levels(), numbers * 16 + signs, 32).view(torch.uint8)
    scales = _scales(blocks, nibbles_in_turn(blocks[:, 106:]), 1.0)
    return Groups(levels, 2 * scales, -15 * scales)


@cache
def _iq1_s_levels() -> Tensor:
    return _as_numbers(vectors(IQ1) + 1)


def _iq1_s(blocks: Tensor) -> Groups:
    """IQ1_S: super-blocks of 256 values, in groups of 32: four vectors of 8 with numbers of 11
    bits, whose upper ones are stored separately, with a 3-bit scale and whether an eighth is added
    or subtracted."""
    above = words(blocks[:, 34:], 2)
    upper = (above[..., None] >> torch.tensor([0, 3, 6, 9])) & 7
    places = blocks[:, 2:34].long() | upper.flatten(1) << 8
    scales = _scales(blocks, (above >> 12) & 7, 1.0)
    shift = torch.where(above >> 15 == 1, -9 / 8, -7 / 8)
    levels = _looked_up(_iq1_s_levels(), places, 32).view(torch.uint8)
    return Groups(levels, scales, scales * shift)


@cache
def _iq1_m_levels() -> Tensor:
    """Returns the vectors' levels in eighths, with the shift added, then with it subtracted."""
    eighths = 8 * vectors(IQ1)
    return _as_numbers(torch.stack((eighths + 1, eighths - 1)))


def _iq1_m(blocks: Tensor) -> Groups:
    """IQ1_M: as IQ1_S, with a 3-bit scale for 16 values and a shift for 8. The float16 lies in the
    upper bits of four words, below which are the scales."""
    above = nibbles_in_turn(blocks[:, 32:48]).long()
    levels = _looked_up(_iq1_m_levels(), blocks[:, :32].long() | above << 8, 16)
    packed = words(blocks[:, 48:], 2)
    unit = ((packed >> 12) << torch.tensor([0, 4, 8, 12])).sum(-1, keepdim=True)
    numbers = ((packed[..., None] >> torch.tensor([0, 3, 6, 9])) & 7).flatten(1)
    scale = unit.to(torch.int16).view(torch.float16).float() / 8
    return Groups(levels, scale * (2 * numbers + 1).float())


GRID_QUANTS = (
    grouped_format("IQ1_S", _iq1_s, MatrixKind.U4W),
    grouped_format("IQ1_M", _iq1_m, MatrixKind.S8W16, group=16),
    grouped_format("IQ2_XXS", _iq2_xxs, MatrixKind.S8W16),
    grouped_format("IQ2_XS", _iq2_xs, MatrixKind.S8W16, group=16),
    grouped_format("IQ2_S", _iq2_s, MatrixKind.S8W16, group=16),
    grouped_format("IQ3_XXS", _iq3_xxs, MatrixKind.S8W16),
    grouped_format("IQ3_S", _iq3_s, MatrixKind.U4W),
)
