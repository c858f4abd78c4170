"""Samples from a short list of tokens, which registers hold as a whole.

One sort takes the place of two radix searches (`selection.py`), each of which goes through the list
eleven times.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.sampling.row_parts import NO_ID, weight_of
from penstock_kernels.triton.sampling.selection import key_value, order_key

SORTED = 2048
"""Most tokens of such a list, a power of two."""
PLACE_BITS = tl.constexpr(SORTED.bit_length() - 1)


@triton.jit
def draw_of_sorted(
    logits,
    ids,
    size,
    total,
    best,
    temperature,
    top_k,
    top_p,
    min_p,
    draw,
    SORTED: tl.constexpr,
):
    """Returns a token of `ids`, [size] int32, ascending, at most SORTED of them: those of a row's
    tokens that top_k, top_p or min_p may keep. `total` is the sum of the weights of the whole row;
    top_k is 0 for all."""
    at = tl.arange(0, SORTED)
    inside = at < size
    token = tl.load(ids + at, mask=inside, other=0)
    x = tl.load(logits + token, mask=inside, other=float("-inf"))
    # By logit, and of equal ones the lower id first. All differ.
    order = (order_key(x) << PLACE_BITS) | (SORTED - 1 - at)
    order = tl.where(inside, order, -1)
    ranked = tl.sort(order, descending=True)
    count = tl.where((top_k > 0) & (top_k < size), top_k, size)
    if top_p < 1.0:
        peak = tl.where(ranked >= 0, key_value(ranked >> PLACE_BITS), float("-inf"))
        weight = tl.where(at < count, weight_of(peak, best, temperature), 0.0)
        wanted = top_p * tl.where(top_k > 0, tl.sum(weight, 0), total)
        short = (at < count) & (tl.cumsum(weight, 0) < wanted)
        count = tl.minimum(count, tl.sum(short.to(tl.int32), 0) + 1)
    least = tl.sum(tl.where(at == count - 1, ranked, 0), 0)
    weight = tl.where(inside & (order >= least), weight_of(x, best, temperature), 0.0)
    weight = tl.where(weight >= min_p, weight, 0.0)
    target = draw * tl.sum(weight, 0)
    over = (tl.cumsum(weight, 0) > target) & (weight > 0.0)
    # The last one is needed if the cumulative sum was rounded to less than the sum.
    last = tl.max(tl.where(weight > 0.0, at, 0), 0)
    place = tl.minimum(last, tl.min(tl.where(over, at, NO_ID), 0))
    return tl.load(ids + place)
