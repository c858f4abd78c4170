"""Norm and rotation of some heads of a row, for `rope_write`."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.rounding import rounded


@triton.jit
def heads_in_halves(heads, place, mask, HALF: tl.constexpr):
    """Returns the two halves of some heads, [TILE, HALF_BLOCK] float32 each."""
    first = tl.load(heads + place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(heads + place + HALF, mask=mask, other=0.0)
    return first, second.to(tl.float32)


@triton.jit
def _pair(left, right, inside):
    """Returns two vectors, [1, HALF_BLOCK] float32 each, by a single load. Two loads would be
    waited for separately, since both go through shared memory to the threads with the heads, and
    the few programs of a decode do little else than wait."""
    pair = tl.load(tl.join(left, right), mask=inside[:, None], other=0.0).to(tl.float32)
    first, second = tl.split(pair)
    return first[None, :], second[None, :]


@triton.jit
def _rotated(first, second, cos, sin, angle, inside):
    """Rotates pairs. `cos` and `sin` are the tables, `angle` the row's indices in them."""
    cosine, sine = _pair(cos + angle, sin + angle, inside)
    return first * cosine - second * sine, second * cosine + first * sine


@triton.jit
def turned_heads(
    heads,
    place,
    mask,
    rest_place,
    rest_mask,
    weight,
    cos,
    sin,
    angle,
    column,
    inside,
    rest_column,
    rest_inside,
    eps,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """Returns the halves of some heads that rotate, normalised and rotated, and what lies after
    them in a head, normalised. All are float32; the norm is rounded as in the reference."""
    REST: tl.constexpr = HEAD_DIM - 2 * HALF
    dtype: tl.constexpr = heads.dtype.element_ty
    first, second = heads_in_halves(heads, place, mask, HALF)
    rest = first
    if REST > 0:
        rest = tl.load(heads + rest_place, mask=rest_mask, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if REST > 0:
            squares += tl.sum(rest * rest, 1)
        root = tl.sqrt_rn(squares / HEAD_DIM + eps)[:, None]
        left, right = _pair(weight + column, weight + HALF + column, inside)
        first = rounded(first / root * left, dtype)
        second = rounded(second / root * right, dtype)
        if REST > 0:
            gain = tl.load(weight + rest_column, mask=rest_inside, other=0.0).to(tl.float32)
            rest = rounded(rest / root * gain[None, :], dtype)
    if ROTATE:
        first, second = _rotated(first, second, cos, sin, angle, inside)
    return first, second, rest
