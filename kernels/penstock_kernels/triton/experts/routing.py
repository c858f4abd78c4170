"""Chooses experts for each row.

A program has one row, whose scores lie in a block of [groups, experts of a group]. So a row's
choice, and the bits of its weights, depend on that row alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early


@dataclass(frozen=True)
class RoutingRule:
    """How scores become a choice and weights; see penstock.model.layer_spec.ExpertsSpec."""

    count: int
    """Experts, a multiple of `groups`."""
    active: int
    """Experts of a row."""
    sigmoid: bool = False
    """Whether scores are sigmoids of the router's products; otherwise their softmax."""
    normalised: bool = True
    """Whether the chosen experts' weights are divided by their sum."""
    scale: float = 1.0
    """Factor of the weights."""
    groups: int = 1
    active_groups: int = 1
    """Groups that a row's experts are chosen from."""
    group_best: int = 2
    """Experts of a group whose sum is its score."""
    sum_floor: float = 1e-20
    """Added to the sum that weights are divided by."""


@triton.jit
def _best_groups(
    ranked, within, GROUPS: tl.constexpr, ACTIVE_GROUPS: tl.constexpr, GROUP_BEST: tl.constexpr
):
    """Returns which groups are chosen, [GROUP_BLOCK]: those whose best experts score highest."""
    PER_BLOCK: tl.constexpr = ranked.shape[1]
    number = tl.arange(0, ranked.shape[0])
    total = tl.zeros([ranked.shape[0]], tl.float32)
    for _ in tl.static_range(GROUP_BEST):
        best = tl.max(ranked, 1)
        total += best
        first = tl.min(tl.where(ranked == best[:, None], within, PER_BLOCK), 1)
        ranked = tl.where(within == first[:, None], float("-inf"), ranked)
    total = tl.where(number < GROUPS, total, float("-inf"))
    chosen = number < 0
    for _ in tl.static_range(ACTIVE_GROUPS):
        best = tl.max(total, 0)
        first = tl.min(tl.where(total == best, number, GROUPS - 1), 0)
        chosen = chosen | (number == first)
        total = tl.where(number == first, float("-inf"), total)
    return chosen


@triton.jit
def _route(
    raw,
    correction,
    chosen,
    weights,
    raw_row,
    scale,
    sum_floor,
    GROUPS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    ACTIVE: tl.constexpr,
    ACTIVE_GROUPS: tl.constexpr,
    GROUP_BEST: tl.constexpr,
    SIGMOID: tl.constexpr,
    NORMALISED: tl.constexpr,
    CORRECTION: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    ACTIVE_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    await_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUP_BLOCK)[:, None]
    within = tl.arange(0, PER_BLOCK)[None, :]
    real = (group < GROUPS) & (within < PER_GROUP)
    expert = group * PER_GROUP + within
    value = tl.load(raw + row * raw_row + expert, mask=real, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        score = 1.0 / (1.0 + tl.exp(-value))
    else:
        power = tl.exp(value - tl.max(tl.max(value, 1), 0))
        score = power / tl.sum(tl.sum(power, 1), 0)
    ranked = score
    if CORRECTION:
        ranked += tl.load(correction + expert, mask=real, other=0.0)
    ranked = tl.where(real, ranked, float("-inf"))
    if GROUPS > 1:
        best = _best_groups(ranked, within, GROUPS, ACTIVE_GROUPS, GROUP_BEST)
        ranked = tl.where(best[:, None], ranked, float("-inf"))
    slot = tl.arange(0, ACTIVE_BLOCK)
    numbers = tl.full([ACTIVE_BLOCK], GROUPS * PER_GROUP, tl.int32)
    taken = tl.zeros([ACTIVE_BLOCK], tl.float32)
    for step in range(ACTIVE):
        best_score = tl.max(tl.max(ranked, 1), 0)
        # Where scores aren't numbers no expert is the best; the last one stands for it then.
        candidates = tl.where(real & (ranked == best_score), expert, GROUPS * PER_GROUP - 1)
        number = tl.min(tl.min(candidates, 1), 0)
        found = real & (expert == number)
        own = tl.sum(tl.sum(tl.where(found, score, 0.0), 1), 0)
        numbers = tl.where(slot == step, number, numbers)
        taken = tl.where(slot == step, own, taken)
        ranked = tl.where(found, float("-inf"), ranked)
    if NORMALISED:
        taken = taken / (tl.sum(taken, 0) + sum_floor)
    taken *= scale
    left, right = numbers[None, :], numbers[:, None]
    earlier = (left < right) | ((left == right) & (slot[None, :] < slot[:, None]))
    place = row * ACTIVE + tl.sum(earlier.to(tl.int32), 1)
    tl.store(chosen + place, numbers, mask=slot < ACTIVE)
    tl.store(weights + place, taken, mask=slot < ACTIVE)


def route(raw: Tensor, rule: RoutingRule, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the chosen experts of each row, [rows, active] int32 in ascending order, and their
    weights, [rows, active] float32. Of equal scores, the expert with the smallest number is chosen.

    `raw`: the router's products, [rows, count], of any float dtype; rows may be strided.
    `correction`: [count] float32, added to scores for choosing only; or None.
    """
    rows = raw.shape[0]
    chosen = torch.empty(rows, rule.active, dtype=torch.int32, device=raw.device)
    weights = torch.empty(rows, rule.active, dtype=torch.float32, device=raw.device)
    per_group = rule.count // rule.groups
    if rows:
        _route[(rows,)](
            raw=raw,
            correction=correction,
            chosen=chosen,
            weights=weights,
            raw_row=raw.stride(0),
            scale=rule.scale,
            sum_floor=rule.sum_floor,
            GROUPS=rule.groups,
            PER_GROUP=per_group,
            ACTIVE=rule.active,
            ACTIVE_GROUPS=rule.active_groups,
            GROUP_BEST=rule.group_best,
            SIGMOID=rule.sigmoid,
            NORMALISED=rule.normalised,
            CORRECTION=correction is not None,
            GROUP_BLOCK=triton.next_power_of_2(rule.groups),
            PER_BLOCK=triton.next_power_of_2(per_group),
            ACTIVE_BLOCK=triton.next_power_of_2(rule.active),
            num_warps=1,
            **launched_early(raw.device),
        )
    return chosen, weights
