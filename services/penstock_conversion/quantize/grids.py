"""The search for the grid of levels that a group of numbers is rounded to with the smallest
weighted squared error.

Rounding with a grid in mind says which level each number has; least squares say which grid suits
these levels best. Both are done for a number of grids, from a little coarser than the group's range
needs to a little finer, and the best is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

COARSER_TO_FINER = tuple(step / 10 for step in range(-10, 11, 2))
"""Levels by which the ranges of the grids that are tried are longer."""
_TINY = 1e-30


def affine_grid(
    x: Tensor, weights: Tensor, highest: int, *, any_minimum: bool
) -> tuple[Tensor, ...]:
    """Returns scale and minimum of each group, [...]: a number is near scale * level + minimum,
    with levels from 0 to `highest`.

    x, weights: [..., group].  any_minimum: whether the minimum may be above 0.
    """
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    if not any_minimum:
        low = low.clamp(max=0)
    span = (high - low).clamp(min=_TINY)
    weighted, above = weights * x, x - low
    sum_w, sum_x = weights.sum(-1), weighted.sum(-1)
    best: list[Tensor] = []
    for step in COARSER_TO_FINER:
        levels = (above * ((highest + step) / span)).round_().clamp_(0, highest)
        of_levels = weights * levels
        sum_q, sum_qq = of_levels.sum(-1), of_levels.mul_(levels).sum(-1)
        sum_xq = levels.mul_(weighted).sum(-1)
        scale, minimum = _line(sum_w, sum_x, sum_q, sum_qq, sum_xq, any_minimum=any_minimum)
        found = [scale * sum_xq + minimum * sum_x, scale, minimum]
        best = _better(best, found)
    _, scale, minimum = best
    return scale, minimum


def _line(
    sum_w: Tensor,
    sum_x: Tensor,
    sum_q: Tensor,
    sum_qq: Tensor,
    sum_xq: Tensor,
    *,
    any_minimum: bool,
) -> tuple[Tensor, Tensor]:
    """Scale and minimum by weighted least squares, the scale at least 0."""
    determinant = sum_w * sum_qq - sum_q * sum_q
    sound = determinant > 1e-6 * sum_w * sum_qq
    divisor = torch.where(sound, determinant, 1.0)
    scale = torch.where(sound, (sum_w * sum_xq - sum_x * sum_q) / divisor, 0.0)
    minimum = torch.where(sound, (sum_qq * sum_x - sum_q * sum_xq) / divisor, sum_x / sum_w)
    if any_minimum:
        return scale, minimum
    alone = (sum_xq / sum_qq.clamp(min=_TINY)).clamp_(min=0)
    above = minimum > 0
    return torch.where(above, alone, scale), torch.where(above, 0.0, minimum)


def even_grid(x: Tensor, weights: Tensor, lowest: int) -> Tensor:
    """Returns the scale of each group, [...]: a number is near scale * level, with levels from
    `lowest`, below 0, to -`lowest` - 1. The scale is negative where the number farthest from 0 is
    positive.

    x, weights: [..., group].
    """
    farthest = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    farthest = torch.where(farthest.abs() < _TINY, _TINY, farthest)
    weighted = weights * x
    best: list[Tensor] = []
    for step in COARSER_TO_FINER:
        levels = (x * ((lowest - step) / farthest)).round_().clamp_(lowest, -lowest - 1)
        sum_qq = (weights * levels).mul_(levels).sum(-1).clamp_(min=_TINY)
        sum_xq = levels.mul_(weighted).sum(-1)
        best = _better(best, [sum_xq * sum_xq / sum_qq, sum_xq / sum_qq])
    return best[1]


def _better(best: list[Tensor], found: list[Tensor]) -> list[Tensor]:
    """Keeps group by group what has more of the first: by so much the error is below that of
    zeros."""
    if not best:
        return found
    more = found[0] > best[0]
    return [torch.where(more, new, old) for new, old in zip(found, best, strict=True)]
