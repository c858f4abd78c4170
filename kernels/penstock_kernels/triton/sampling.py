"""Drawing one token from each row of logits, with no sort and no rejection.

A program has one row.  Its passes over the row: the largest entry; a radix search for top_k and one
for top_p (`selection.py`), where asked for; the cut weights and their sum; and the place that the
draw falls on.  Weights are float64, as in the reference, in memory of the caller's stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.philox import draw_uniform
from penstock_kernels.triton.selection import kept_entries, key_value, order_key, threshold
from penstock_kernels.triton.tiles import SAMPLING_BLOCK, SAMPLING_WARPS

_NO_ID = tl.constexpr(0x7FFFFFFF)


@dataclass(frozen=True)
class SamplingRows:
    """What each row asks for, [rows] tensors on the device; see reference.SamplingCuts.

    temperature, top_p, min_p: float64; a temperature of 0 takes the likeliest token.
    top_k: int32.  seed (by its bits), sequence, token: int64, see reference.uniform.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    sequence: Tensor
    token: Tensor


@triton.jit
def _likeliest(logits, vocab, HOLES: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit, its lowest id, and how many are NaN or +inf, or -inf without HOLES."""
    best = tl.full((), float("-inf"), tl.float32)
    best_id = tl.full((), 0, tl.int32)
    bad = tl.full((), 0, tl.int32)
    for base in range(0, vocab, BLOCK):
        at = base + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < vocab, other=float("-inf"))
        wrong = (x != x) | (x == float("inf"))
        if not HOLES:
            wrong |= (x == float("-inf")) & (at < vocab)
        bad += tl.sum(wrong.to(tl.int32), 0)
        peak = tl.max(tl.where(x == x, x, float("-inf")), 0)
        first = tl.min(tl.where(x == peak, at, _NO_ID), 0)
        best_id = tl.where(peak > best, first, best_id)
        best = tl.maximum(best, peak)
    return best, best_id, bad


@triton.jit
def _weigh(logits, weights, vocab, best, temperature, limit, ties, BLOCK: tl.constexpr):
    """Stores the weights of what top_k keeps, 0 for the rest; returns their sum."""
    total = tl.full((), 0.0, tl.float64)
    seen = tl.full((), 0, tl.int32)
    for base in range(0, vocab, BLOCK):
        at = base + tl.arange(0, BLOCK)
        inside = at < vocab
        x = tl.load(logits + at, mask=inside, other=float("-inf"))
        kept = inside
        if limit >= 0:  # Else all are: no need to count equal ones.
            kept, seen = kept_entries(order_key(x), inside, limit, ties, seen)
        weight = tl.exp((x.to(tl.float64) - best) / temperature)
        weight = tl.where(kept, weight, 0.0)
        tl.store(weights + at, weight, mask=inside)
        total += tl.sum(weight, 0)
    tl.debug_barrier()
    return total


@triton.jit
def _cut(logits, weights, vocab, least, limit, ties, BLOCK: tl.constexpr):
    """Stores 0 for what top_p and min_p leave out; returns the sum of the rest."""
    total = tl.full((), 0.0, tl.float64)
    seen = tl.full((), 0, tl.int32)
    for base in range(0, vocab, BLOCK):
        at = base + tl.arange(0, BLOCK)
        inside = at < vocab
        x = tl.load(logits + at, mask=inside, other=float("-inf"))
        kept = inside
        if limit >= 0:  # Else all are: no need to count equal ones.
            kept, seen = kept_entries(order_key(x), inside, limit, ties, seen)
        weight = tl.load(weights + at, mask=inside, other=0.0)
        weight = tl.where(kept & (weight >= least), weight, 0.0)
        tl.store(weights + at, weight, mask=inside)
        total += tl.sum(weight, 0)
    tl.debug_barrier()
    return total


@triton.jit
def _place(weights, vocab, target, BLOCK: tl.constexpr):
    """The first id whose cumulative weight exceeds target: its own weight is above 0."""
    before = tl.full((), 0.0, tl.float64)
    found = tl.full((), -1, tl.int32)
    last = tl.full((), 0, tl.int32)
    for base in range(0, vocab, BLOCK):
        at = base + tl.arange(0, BLOCK)
        weight = tl.load(weights + at, mask=at < vocab, other=0.0)
        here = tl.sum(weight, 0)
        last = tl.maximum(last, tl.max(tl.where(weight > 0.0, at, 0), 0))
        if (found < 0) & (before + here > target):
            over = (before + tl.cumsum(weight, 0) > target) & (weight > 0.0)
            # `last`: the cumulative sum was rounded below the sum.
            found = tl.minimum(last, tl.min(tl.where(over, at, _NO_ID), 0))
        before += here
    return tl.where(found < 0, last, found)


@triton.jit
def _sample(
    logits,
    weights,
    tokens,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    sequences,
    indices,
    vocab,
    HOLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocab
    weights += row.to(tl.int64) * vocab
    best, token, bad = _likeliest(logits, vocab, HOLES, BLOCK)
    temperature = tl.load(temperatures + row)
    if (bad > 0) | (best == float("-inf")):
        token = tl.full((), -1, tl.int32)
    elif temperature > 0.0:
        top_k = tl.load(top_ks + row)
        top_p = tl.load(top_ps + row)
        limit = tl.full((), -1, tl.int64)
        ties = tl.full((), 0, tl.int32)
        if (top_k > 0) & (top_k < vocab):
            limit, above = threshold(logits, weights, vocab, top_k.to(tl.float64), True, BLOCK)
            ties = top_k - above.to(tl.int32)
        peak = best.to(tl.float64)
        total = _weigh(logits, weights, vocab, peak, temperature, limit, ties, BLOCK)
        limit = tl.full((), -1, tl.int64)
        if top_p < 1.0:
            wanted = top_p * total
            limit, held = threshold(logits, weights, vocab, wanted, False, BLOCK)
            level = tl.exp((key_value(limit).to(tl.float64) - peak) / temperature)
            level = tl.maximum(level, 1e-300)
            ties = tl.minimum(tl.ceil((wanted - held) / level), vocab * 1.0).to(tl.int32)
            ties = tl.maximum(ties, 1)
        least = tl.load(min_ps + row)
        if (least > 0.0) | (top_p < 1.0):
            total = _cut(logits, weights, vocab, least, limit, ties, BLOCK)
        draw = draw_uniform(tl.load(seeds + row), tl.load(sequences + row), tl.load(indices + row))
        token = _place(weights, vocab, draw * total, BLOCK)
    tl.store(tokens + row, token.to(tl.int64))


def sample_rows(
    logits: Tensor,
    rows: SamplingRows,
    *,
    holes: bool = True,
    block: int = SAMPLING_BLOCK,
    warps: int = SAMPLING_WARPS,
) -> Tensor:
    """reference.sample_row of every row, with the draw of reference.uniform.

    logits: [rows, vocab] float32, contiguous; -inf marks tokens that can't be drawn, or without
    holes a row that isn't finite.  block: logits that a program reads at once; sums of weights are
    added in its order.
    Returns [rows] int64; -1 where a logit is NaN or +inf, or none is finite.
    """
    count, vocab = logits.shape
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    if count:
        _sample[(count,)](
            logits,
            torch.empty(count, vocab, dtype=torch.float64, device=logits.device),
            tokens,
            rows.temperature,
            rows.top_k,
            rows.top_p,
            rows.min_p,
            rows.seed,
            rows.sequence,
            rows.token,
            vocab,
            HOLES=holes,
            BLOCK=block,
            num_warps=warps,
        )
    return tokens
