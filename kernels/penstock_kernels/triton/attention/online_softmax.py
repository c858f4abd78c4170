"""One step of the online softmax (Milakov and Gimelshein, 2018), whose scores come tile by tile."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def online_softmax_step(scores, top, total):
    """Adds a tile of scores, in powers of two. Returns (top, keep, weights, total).

    `scores`: [rows, keys] float32.
    `top`: [rows], the largest score so far.
    `total`: [rows], the sum of the weights so far.
    `keep`: [rows], the factor for everything that was summed before.
    `weights`: [rows, keys], the weights of these scores.

    A tile of -inf changes nothing once `top` is finite.
    """
    peak = tl.maximum(top, tl.max(scores, 1))
    keep = tl.exp2(top - peak)
    weights = tl.exp2(scores - peak[:, None])
    return peak, keep, weights, tl.fma(total, keep, tl.sum(weights, 1))
