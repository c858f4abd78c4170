"""Types of one to three bits, whose values are vectors of a grid, with a sign of each or a shift of
several."""

from __future__ import annotations

import torch
from torch import Tensor

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


def _signed(grid: Grid, numbers: Tensor, signs: Tensor) -> Tensor:
    """Returns the grid's vectors with signs, int8, [blocks, values]. numbers: [blocks, vectors].
    signs: [blocks, bytes], a bit for each value, which is negative if it is 1."""
    found = vectors(grid)[numbers.long()].flatten(1)
    return torch.where(bits_of(signs).bool(), -found, found)


def _with_parity(signs: Tensor) -> Tensor:
    """Completes 7 signs by an eighth, so that an even number of them is negative. Returns uint8 of
    the same shape."""
    parity = sum((signs >> bit) & 1 for bit in range(7)) & 1
    return (signs | parity << 7).to(torch.uint8)


def _four_signs(word: Tensor) -> Tensor:
    """Returns four times 7 signs of words of 32 bits, completed: [blocks, 4 * words] uint8."""
    shifts = torch.tensor([0, 7, 14, 21])
    return _with_parity(((word[..., None] >> shifts) & 127).flatten(1))


def _scales(blocks: Tensor, numbers: Tensor, share: float) -> Tensor:
    """Returns the block's float16 times odd numbers, 2 * numbers + 1, times a power of two."""
    return half(blocks, 0).float() * (2 * numbers + 1).float() * share


# IQ2_XXS: super-blocks of 256 values, in groups of 32: four vectors of 8, four times 7 signs, and
# a 4-bit scale.


def _iq2_xxs(blocks: Tensor) -> Groups:
    by_group = blocks[:, 2:].unflatten(-1, (8, 8))
    word = words(by_group[..., 4:].flatten(1), 4)
    levels = _signed(IQ2_XXS, by_group[..., :4].flatten(1), _four_signs(word))
    return Groups(levels.unflatten(-1, (8, 32)), _scales(blocks, word >> 28, 1 / 8))


# IQ2_XS: the same with a 4-bit scale for 16 values, and numbers of 9 bits with 7 signs each.


def _iq2_xs(blocks: Tensor) -> Groups:
    both, scales = words(blocks[:, 2:66], 2), nibbles_in_turn(blocks[:, 66:])
    levels = _signed(IQ2_XS, both & 511, _with_parity(both >> 9))
    return Groups(levels.unflatten(-1, (16, 16)), _scales(blocks, scales, 1 / 8))


# IQ2_S: the same with all signs, and numbers of 10 bits, whose upper ones are stored separately.


def _iq2_s(blocks: Tensor) -> Groups:
    upper = (blocks[:, 66:74, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)) & 3
    numbers = blocks[:, 2:34].int() | upper.flatten(1).int() << 8
    levels = _signed(IQ2_S, numbers, blocks[:, 34:66])
    scales = nibbles_in_turn(blocks[:, 74:])
    return Groups(levels.unflatten(-1, (16, 16)), _scales(blocks, scales, 1 / 8))


# IQ3_XXS: super-blocks of 256 values, in groups of 32: eight vectors of 4, four times 7 signs, and
# a 4-bit scale.


def _iq3_xxs(blocks: Tensor) -> Groups:
    word = words(blocks[:, 66:], 4)
    levels = _signed(IQ3_XXS, blocks[:, 2:66], _four_signs(word))
    return Groups(levels.unflatten(-1, (8, 32)), _scales(blocks, word >> 28, 1 / 4))


# IQ3_S: the same with all signs, and numbers of 9 bits, whose highest ones are stored separately.
# Values are odd numbers from -15 to 15.


def _iq3_s(blocks: Tensor) -> Groups:
    numbers = blocks[:, 2:66].int() | bits_of(blocks[:, 66:74]).int() << 8
    values = _signed(IQ3_S, numbers, blocks[:, 74:106]).unflatten(-1, (8, 32))
    scales = _scales(blocks, nibbles_in_turn(blocks[:, 106:]), 1.0)
    return Groups(((values + 15) >> 1).to(torch.uint8), 2 * scales, -15 * scales)


# IQ1_S: super-blocks of 256 values, in groups of 32: four vectors of 8 with numbers of 11 bits,
# whose upper ones are stored separately, beside a 3-bit scale, and whether an eighth is added or
# subtracted.


def _iq1_s(blocks: Tensor) -> Groups:
    above = words(blocks[:, 34:], 2)
    upper = (above[..., None] >> torch.tensor([0, 3, 6, 9])) & 7
    found = vectors(IQ1)[blocks[:, 2:34].long() | upper.flatten(1) << 8]
    scales = _scales(blocks, (above >> 12) & 7, 1.0)
    shift = torch.where(above >> 15 == 1, -9 / 8, -7 / 8)
    levels = (found + 1).to(torch.uint8).flatten(1).unflatten(-1, (8, 32))
    return Groups(levels, scales, scales * shift)


# IQ1_M: the same with a 3-bit scale for 16 values and a shift for 8. The float16 lies in the upper
# bits of four words, below which are the scales.


def _iq1_m(blocks: Tensor) -> Groups:
    above = torch.stack((blocks[:, 32:48] & 15, blocks[:, 32:48] >> 4), -1).flatten(1).long()
    found = vectors(IQ1)[blocks[:, :32].long() | (above & 7) << 8]
    eighths = 8 * found + (1 - 2 * (above >> 3)).to(torch.int8)[..., None]
    packed = words(blocks[:, 48:], 2)
    unit = ((packed >> 12) << torch.tensor([0, 4, 8, 12])).sum(-1, keepdim=True)
    unit = unit.to(torch.int16).view(torch.float16).float()
    numbers = ((packed[..., None] >> torch.tensor([0, 3, 6, 9])) & 7).flatten(1)
    scales = unit * (2 * numbers + 1).float() / 8
    return Groups(eighths.flatten(1).unflatten(-1, (16, 16)), scales)


GRID_QUANTS = (
    grouped_format("IQ1_S", _iq1_s, MatrixKind.U4W),
    grouped_format("IQ1_M", _iq1_m, MatrixKind.S8W16, group=16),
    grouped_format("IQ2_XXS", _iq2_xxs, MatrixKind.S8W16),
    grouped_format("IQ2_XS", _iq2_xs, MatrixKind.S8W16, group=16),
    grouped_format("IQ2_S", _iq2_s, MatrixKind.S8W16, group=16),
    grouped_format("IQ3_XXS", _iq3_xxs, MatrixKind.S8W16),
    grouped_format("IQ3_S", _iq3_s, MatrixKind.U4W),
)
