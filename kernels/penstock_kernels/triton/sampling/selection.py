"""Finds the value in a row at which the largest entries reach a given number or a given total
weight.

Instead of a sort, it is a radix search over the bits of the floats (Alabi et al., 2012, "Fast
k-selection algorithms for graphics processing units"): floats are mapped to integers in the same
order, and each pass over the row decides three more bits, from the sums of what is at or above each
of 8 digits. The sums are float64 in a fixed order, and exact where they are counts.
"""

from __future__ import annotations

import triton
import triton.language as tl

DIGIT_BITS = tl.constexpr(3)
TOP_SHIFT = tl.constexpr(30)


@triton.jit
def order_key(x):
    """Returns int64 in [0, 2**32) in the order of the float32 values. -0.0 and 0.0 are equal. NaN
    isn't allowed."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    flipped = bits ^ ((bits >> 31) | -2147483648)
    return flipped.to(tl.int64) & 0xFFFFFFFF


@triton.jit
def key_value(key):
    """Returns the float32 with this order_key."""
    bits = tl.where(key >= 0x80000000, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def threshold(
    logits,
    ids,
    weights,
    size,
    wanted,
    COUNT: tl.constexpr,
    LISTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Returns (key, above): the largest key such that the weights of entries at or above it sum to
    at least `wanted`, and the sum of those above it.

    `logits`: a row, float32.
    `weights`: [size] float64, none negative.
    COUNT: every entry weighs 1, and `weights` isn't read.
    LISTED: the entries are the logits of `ids`, [size] int32; otherwise they are the first `size`
    logits, and `ids` isn't read.
    """
    prefix = tl.full((), 0, tl.int64)
    above = tl.full((), 0.0, tl.float64)
    for step in range(0, TOP_SHIFT + DIGIT_BITS, DIGIT_BITS):
        shift = TOP_SHIFT - step
        from1 = tl.zeros([BLOCK], tl.float64)
        from2 = tl.zeros([BLOCK], tl.float64)
        from3 = tl.zeros([BLOCK], tl.float64)
        from4 = tl.zeros([BLOCK], tl.float64)
        from5 = tl.zeros([BLOCK], tl.float64)
        from6 = tl.zeros([BLOCK], tl.float64)
        from7 = tl.zeros([BLOCK], tl.float64)
        for base in range(0, size, BLOCK):
            at = base + tl.arange(0, BLOCK)
            inside = at < size
            entry = at
            if LISTED:
                entry = tl.load(ids + at, mask=inside, other=0)
            rest = order_key(tl.load(logits + entry, mask=inside, other=0.0)) >> shift
            among = inside & ((rest >> DIGIT_BITS) == prefix)
            if COUNT:
                weight = tl.where(among, 1.0, 0.0).to(tl.float64)
            else:
                weight = tl.load(weights + at, mask=among, other=0.0)
            digit = rest & 7
            from1 += tl.where(digit >= 1, weight, 0.0)
            from2 += tl.where(digit >= 2, weight, 0.0)
            from3 += tl.where(digit >= 3, weight, 0.0)
            from4 += tl.where(digit >= 4, weight, 0.0)
            from5 += tl.where(digit >= 5, weight, 0.0)
            from6 += tl.where(digit >= 6, weight, 0.0)
            from7 += tl.where(digit >= 7, weight, 0.0)
        chosen = tl.full((), 0, tl.int64)
        over = above + tl.sum(from1, 0)
        chosen, over = _raised(chosen, over, above, from1, from2, wanted)
        chosen, over = _raised(chosen, over, above, from2, from3, wanted)
        chosen, over = _raised(chosen, over, above, from3, from4, wanted)
        chosen, over = _raised(chosen, over, above, from4, from5, wanted)
        chosen, over = _raised(chosen, over, above, from5, from6, wanted)
        chosen, over = _raised(chosen, over, above, from6, from7, wanted)
        chosen, over = _raised(chosen, over, above, from7, from7 * 0.0, wanted)
        prefix = prefix * 8 + chosen
        above = over
    return prefix, above


@triton.jit
def _raised(chosen, over, above, here, next_up, wanted):
    """Raises the digit if the entries at or above it still suffice."""
    enough = above + tl.sum(here, 0) >= wanted
    return (
        chosen + enough.to(tl.int64),
        tl.where(enough, above + tl.sum(next_up, 0), over),
    )


@triton.jit
def kept_entries(key, inside, limit, ties, seen):
    """Returns (mask, seen): the entries above `limit` and the first `ties` entries equal to it.
    `seen` is the number of equal entries in the blocks before."""
    level = inside & (key == limit)
    rank = seen + tl.cumsum(level.to(tl.int32), 0)
    return inside & ((key > limit) | (level & (rank <= ties))), seen + tl.sum(level.to(tl.int32), 0)
