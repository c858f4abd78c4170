"""Steps of the online softmax (Milakov and Gimelshein, 2018), whose scores come tile by tile."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.rounding import LOG2_E


@triton.jit
def online_softmax_step(scores, scale, top, total):
    """Adds a tile of scores. Returns (top, keep, weights, total).

    `scores`: [rows, keys] float32; times `scale`, which is positive, they are powers of two.
    `top`: [rows], the largest power so far.
    `total`: [rows], the sum of the weights so far.
    `keep`: [rows], the factor for everything that was summed before.
    `weights`: [rows, keys], the weights of these scores.

    A tile of -inf changes nothing once `top` is finite. Powers are never held by themselves: with a
    mask between product and difference the compiler couldn't fuse the two, and without one it
    would, so both are one fma.
    """
    peak = tl.maximum(top, tl.max(scores, 1) * scale)
    keep = tl.exp2(top - peak)
    below = tl.broadcast_to(-peak[:, None], scores.shape)
    weights = tl.exp2(tl.fma(scores, tl.full(scores.shape, scale, tl.float32), below))
    return peak, keep, weights, tl.fma(total, keep, tl.sum(weights, 1))


@triton.jit
def fold(top, total, mixed, peak, weight, values):
    """Combines two partial softmaxes. Written with fma, so that fusing isn't up to the compiler."""
    both = tl.maximum(top, peak)
    keep = tl.exp2(top - both)
    add = tl.exp2(peak - both)
    total = tl.fma(total, keep, weight * add)
    if len(mixed.shape) == 2:
        keep = tl.broadcast_to(keep[:, None], mixed.shape)
        add = tl.broadcast_to(add[:, None], mixed.shape)
    else:
        keep = tl.broadcast_to(keep, mixed.shape)
        add = tl.broadcast_to(add, mixed.shape)
    return both, total, tl.fma(mixed, keep, values * add)


@triton.jit
def with_sink(top, total, mixed, sink):
    """Adds a score that has no value, after all others: `sink`, a natural logarithm."""
    score = sink * LOG2_E
    both = tl.maximum(top, score)
    keep = tl.exp2(top - both)
    total = tl.fma(total, keep, tl.exp2(score - both))
    if len(mixed.shape) == 2:
        keep = keep[:, None]
    return total, mixed * keep
