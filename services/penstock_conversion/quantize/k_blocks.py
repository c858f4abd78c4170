"""Encoders of GGUF's K-quants: super-blocks of 256 numbers, whose groups have scales, and in some
minima, of a few bits in units of one float16.

Each group's grid is searched for by itself; then scales and minima are rounded to their units, and
the units are chosen anew, by least squares, for the levels that this gives.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from penstock_conversion.quantize.grids import affine_grid, even_grid
from penstock_conversion.quantize.packing import (
    bit_pairs,
    group_bits,
    half_bytes,
    k_nibbles,
    nibbles,
    six_bit_pairs,
    six_bit_scales,
)

SIZE = 256
"""Numbers of a super-block."""
_ROUNDS = 2
"""How often the units are chosen anew."""


class _Affine(NamedTuple):
    """A super-block's numbers are unit * scale * level - unit_minima * minimum."""

    unit: Tensor
    """[blocks] float16."""
    unit_minima: Tensor
    scales: Tensor
    """[blocks, groups] whole numbers in float32."""
    minima: Tensor
    levels: Tensor
    """[blocks, groups, group] whole numbers in float32."""


class _Even(NamedTuple):
    """A super-block's numbers are unit * scale * level."""

    unit: Tensor
    scales: Tensor
    levels: Tensor


Found = TypeVar("Found", _Affine, _Even)


def encode_q2_k(x: Tensor, weights: Tensor) -> Tensor:
    """Q2_K blocks, [blocks, bytes] uint8. x, weights: [blocks, 256] float32, as of all encoders."""
    found = _affine(x, weights, group=16, highest=3, most=15)
    scales, minima = _small(found.scales), _small(found.minima)
    levels = _small(found.levels).reshape(-1, 8, 32)
    units = (half_bytes(found.unit), half_bytes(found.unit_minima))
    return torch.cat((scales | minima << 4, bit_pairs(levels), *units), -1)


def encode_q3_k(x: Tensor, weights: Tensor) -> Tensor:
    """Q3_K blocks, [blocks, bytes] uint8."""
    found = _even(x, weights, lowest=-4, least=-32)
    levels = _small(found.levels + 4).reshape(-1, 8, 32)
    high, low = group_bits(levels >> 2), bit_pairs(levels & 3)
    scales = six_bit_scales(_small(found.scales + 32))
    return torch.cat((high, low, scales, half_bytes(found.unit)), -1)


def encode_q4_k(x: Tensor, weights: Tensor) -> Tensor:
    """Q4_K blocks, [blocks, bytes] uint8."""
    found = _affine(x, weights, group=32, highest=15, most=63)
    return torch.cat((*_head(found), k_nibbles(_small(found.levels))), -1)


def encode_q5_k(x: Tensor, weights: Tensor) -> Tensor:
    """Q5_K blocks, [blocks, bytes] uint8."""
    found = _affine(x, weights, group=32, highest=31, most=63)
    levels = _small(found.levels)
    return torch.cat((*_head(found), group_bits(levels >> 4), k_nibbles(levels & 15)), -1)


def encode_q6_k(x: Tensor, weights: Tensor) -> Tensor:
    """Q6_K blocks, [blocks, bytes] uint8."""
    found = _even(x, weights, lowest=-32, least=-128)
    levels = _small(found.levels + 32)
    low = nibbles((levels & 15).reshape(-1, 2, SIZE // 2)).flatten(1)
    high = bit_pairs((levels >> 4).reshape(-1, 8, 32))
    scales = found.scales.to(torch.int8).view(torch.uint8)
    return torch.cat((low, high, scales, half_bytes(found.unit)), -1)


def _head(found: _Affine) -> tuple[Tensor, ...]:
    units = (half_bytes(found.unit), half_bytes(found.unit_minima))
    return (*units, six_bit_pairs(_small(found.scales), _small(found.minima)))


def _small(whole: Tensor) -> Tensor:
    return whole.to(torch.uint8)


def _affine(x: Tensor, weights: Tensor, *, group: int, highest: int, most: int) -> _Affine:
    x, weights = (each.reshape(len(x), -1, group) for each in (x, weights))
    scale, minimum = affine_grid(x, weights, highest, any_minimum=False)
    lower = -minimum
    unit, of_minima = (each.amax(-1) / most for each in (scale, lower))
    best: tuple[_Affine, Tensor] | None = None
    for _ in range(_ROUNDS):
        unit, of_minima = unit.half(), of_minima.half()
        scales, minima = (_in_units(*each, 0, most) for each in ((scale, unit), (lower, of_minima)))
        step = unit.float()[:, None] * scales
        below = of_minima.float()[:, None] * minima
        levels = _rounded(x + below[..., None], step, 0, highest)
        error = (step[..., None] * levels).sub_(below[..., None]).sub_(x).square_().mul_(weights)
        found = _Affine(unit, of_minima, scales, minima, levels)
        best = _kept(best, found, error.sum((-1, -2)))
        unit, of_minima = _affine_units(x, weights, found)
    if best is None:
        raise RuntimeError("no round was made")
    return best[0]


def _affine_units(x: Tensor, weights: Tensor, found: _Affine) -> tuple[Tensor, Tensor]:
    """Both units by least squares; those that there were, where that has no sound answer."""
    of_scale = found.scales[..., None] * found.levels
    of_minimum = found.minima[..., None].expand_as(of_scale)
    weighted = weights * of_scale
    aa, ab = (weighted * of_scale).sum((-1, -2)), (weighted * of_minimum).sum((-1, -2))
    ax = (weighted * x).sum((-1, -2))
    weighted = weights * of_minimum
    bb, bx = (weighted * of_minimum).sum((-1, -2)), (weighted * x).sum((-1, -2))
    determinant = aa * bb - ab * ab
    sound = determinant > 1e-6 * aa * bb
    divisor = torch.where(sound, determinant, 1.0)
    unit = torch.where(sound, (ax * bb - ab * bx) / divisor, found.unit.float())
    of_minima = torch.where(sound, (ax * ab - aa * bx) / divisor, found.unit_minima.float())
    return unit.clamp_(min=0), of_minima.clamp_(min=0)


def _even(x: Tensor, weights: Tensor, *, lowest: int, least: int) -> _Even:
    x, weights = (each.reshape(len(x), -1, 16) for each in (x, weights))
    scale = even_grid(x, weights, lowest)
    farthest = scale.gather(-1, scale.abs().argmax(-1, keepdim=True))[:, 0]
    unit = farthest / least
    best: tuple[_Even, Tensor] | None = None
    for _ in range(_ROUNDS):
        unit = unit.half()
        scales = _in_units(scale, unit, least, -least - 1)
        step = unit.float()[:, None] * scales
        levels = _rounded(x, step, lowest, -lowest - 1)
        error = (step[..., None] * levels).sub_(x).square_().mul_(weights)
        best = _kept(best, _Even(unit, scales, levels), error.sum((-1, -2)))
        values = scales[..., None] * levels
        weighted = weights * values
        divisor = (weighted * values).sum((-1, -2))
        chosen = (weighted * x).sum((-1, -2)) / divisor.clamp(min=1e-30)
        unit = torch.where(divisor > 0, chosen, unit.float())
    if best is None:
        raise RuntimeError("no round was made")
    return best[0]


def _in_units(values: Tensor, unit: Tensor, least: int, most: int) -> Tensor:
    """[blocks, groups] whole numbers; zeros where the unit is 0."""
    unit = unit.float()
    inverse = torch.where(unit == 0, 0.0, 1 / unit)
    return (values * inverse[:, None]).round_().clamp_(least, most)


def _rounded(x: Tensor, step: Tensor, lowest: int, highest: int) -> Tensor:
    inverse = torch.where(step == 0, 0.0, 1 / step)
    return (x * inverse[..., None]).round_().clamp_(lowest, highest)


def _kept(best: tuple[Found, Tensor] | None, found: Found, error: Tensor) -> tuple[Found, Tensor]:
    """Returns, for each block, whichever of both has the smaller error, and that error."""
    if best is None:
        return found, error
    before, least = best
    less = error < least
    parts = [
        torch.where(less.view(-1, *[1] * (new.dim() - 1)), new, old)
        for new, old in zip(found, before, strict=True)
    ]
    return type(found)(*parts), torch.where(less, error, least)
