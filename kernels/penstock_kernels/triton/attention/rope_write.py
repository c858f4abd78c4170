"""Rotates queries and keys, and writes keys and values into the paged cache.

One kernel: a program has up to ROTARY_HEADS heads of one row, which are all query, all key or all
value heads. Each head is normalised (if the family does that) and rotated independently.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.rounding import round_to, rounded
from penstock_kernels.triton.tiles import ROTARY_HEADS


@dataclass(frozen=True)
class QueryKeyNorms:
    """RMS norms of each query and key head before the rotation (Qwen3). Both weights are
    [head_dim]."""

    query: Tensor
    key: Tensor
    eps: float


@dataclass(frozen=True)
class RotaryTables:
    """Angles of every position, and the positions of a step's rows."""

    cos: Tensor
    """[positions, dims / 2] float32. The first `dims` numbers of a head rotate, an even number of
    at most head_dim."""
    sin: Tensor
    """Sines of the angles, [positions, dims / 2] float32."""
    positions: Tensor
    """[rows] int32 or int64."""
    growth: Tensor | None = None
    """[positions] float32: what rotated queries are multiplied by."""


@triton.jit
def _rope_write(
    query,
    key,
    value,
    query_out,
    key_cache,
    value_cache,
    cos,
    sin,
    positions,
    growth,
    slots,
    query_weight,
    key_weight,
    eps,
    key_inverse,
    value_inverse,
    query_row,
    key_row,
    value_row,
    head_stride,
    slot_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
    GROWTH: tl.constexpr,
    SCALED: tl.constexpr,
    VALUES: tl.constexpr,
    TILE: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The first 2 * HALF numbers of a head are taken as pairs. Without VALUES, no program has value
    heads. An operand that a constant says isn't used is None."""
    await_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    QUERY_PARTS: tl.constexpr = (HEADS + TILE - 1) // TILE
    KEY_PARTS: tl.constexpr = (KV_HEADS + TILE - 1) // TILE
    REST: tl.constexpr = HEAD_DIM - 2 * HALF
    column = tl.arange(0, HALF_BLOCK)
    inside = column < HALF
    rest_column = 2 * HALF + tl.arange(0, REST_BLOCK)
    rest_inside = rest_column < HEAD_DIM
    dtype: tl.constexpr = query.dtype.element_ty
    position = row
    if ROTATE:
        position = tl.load(positions + row).to(tl.int64)
    angle = position * HALF + column
    slot = tl.load(slots + row).to(tl.int64)
    if part < QUERY_PARTS:
        head = part * TILE + tl.arange(0, TILE)
        mask = (head < HEADS)[:, None] & inside[None, :]
        rest_mask = (head < HEADS)[:, None] & rest_inside[None, :]
        place = head[:, None] * HEAD_DIM + column[None, :]
        rest_place = head[:, None] * HEAD_DIM + rest_column[None, :]
        first, second, rest = turned_heads(
            query + row * query_row, place, mask, rest_place, rest_mask, query_weight, cos, sin,
            angle, column, inside, rest_column, rest_inside, eps, HEAD_DIM, HALF, NORM, ROTATE,
        )  # fmt: skip
        if GROWTH:
            factor = tl.load(growth + position)
            first = rounded(first, dtype) * factor
            second = rounded(second, dtype) * factor
            rest = rest * factor
        target = query_out + row * HEADS * HEAD_DIM
        tl.store(target + place, round_to(first, dtype), mask=mask)
        tl.store(target + place + HALF, round_to(second, dtype), mask=mask)
        if REST > 0:
            tl.store(target + rest_place, round_to(rest, dtype), mask=rest_mask)
    elif slot >= 0:
        of_keys = part < QUERY_PARTS + KEY_PARTS
        head = tl.where(of_keys, part - QUERY_PARTS, part - QUERY_PARTS - KEY_PARTS) * TILE
        head = head + tl.arange(0, TILE)
        mask = (head < KV_HEADS)[:, None] & inside[None, :]
        rest_mask = (head < KV_HEADS)[:, None] & rest_inside[None, :]
        place = head[:, None] * HEAD_DIM + column[None, :]
        rest_place = head[:, None] * HEAD_DIM + rest_column[None, :]
        stored = head.to(tl.int64)[:, None] * head_stride + slot * slot_stride
        rest_stored = stored + rest_column[None, :]
        stored = stored + column[None, :]
        kept: tl.constexpr = key_cache.dtype.element_ty
        inverse = 1.0
        if SCALED:
            inverses = tl.where(of_keys, key_inverse, value_inverse)
            inverse = tl.load(inverses + head, mask=head < KV_HEADS, other=1.0)[:, None]
        if of_keys:
            first, second, rest = turned_heads(
                key + row * key_row, place, mask, rest_place, rest_mask, key_weight, cos, sin,
                angle, column, inside, rest_column, rest_inside, eps, HEAD_DIM, HALF, NORM, ROTATE,
            )  # fmt: skip
            first = rounded(first, dtype) * inverse
            second = rounded(second, dtype) * inverse
            tl.store(key_cache + stored, round_to(first, kept), mask=mask)
            tl.store(key_cache + stored + HALF, round_to(second, kept), mask=mask)
            if REST > 0:
                rest = rounded(rest, dtype) * inverse
                tl.store(key_cache + rest_stored, round_to(rest, kept), mask=rest_mask)
        elif VALUES:
            values = value + row * value_row
            first, second = heads_in_halves(values, place, mask, HALF)
            tl.store(value_cache + stored, round_to(first * inverse, kept), mask=mask)
            second = second * inverse
            tl.store(value_cache + stored + HALF, round_to(second, kept), mask=mask)
            if REST > 0:
                tail = tl.load(values + rest_place, mask=rest_mask, other=0.0).to(tl.float32)
                tail = round_to(tail * inverse, kept)
                tl.store(value_cache + rest_stored, tail, mask=rest_mask)


def rope_write(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    rotation: RotaryTables | None,
    slots: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    norms: QueryKeyNorms | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    """reference.apply_rope of queries and keys, then reference.write_kv, in one pass.

    `query`: [rows, heads, head_dim]; `key`, `value`: [rows, kv_heads, head_dim], of one dtype. Rows
    may be strided (views of one qkv product); the heads of a row are contiguous.
    `rotation`: None: nothing rotates.
    `slots`: [rows] int32 or int64, distinct; -1 for padding, which is not written.
    `key_cache`, `value_cache`: [kv_heads, slots, head_dim] with equal strides, float32, bfloat16,
    float16 or float8_e4m3fn. Both are modified.
    `scales`: a cache of FP8 stores numbers times their head's inverse scale, saturated; None: all
    scales are 1.

    Returns the rotated queries, [rows, heads, head_dim].
    """
    rows, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    check_caches(key_cache, value_cache)
    for name, heads_of in (("query", query), ("key", key), ("value", value)):
        if heads_of is not None and heads_of.stride()[1:] != (head_dim, 1):
            raise ValueError(
                f"{name}: the heads of a row must lie together, not {heads_of.stride()}"
            )
    out = torch.empty(rows, heads, head_dim, dtype=query.dtype, device=query.device)
    if not rows:
        return out
    tile = min(ROTARY_HEADS, triton.next_power_of_2(max(heads, kv_heads)))
    stored = 1 if value is None else 2
    parts = triton.cdiv(heads, tile) + stored * triton.cdiv(kv_heads, tile)
    half = head_dim // 2 if rotation is None else rotation.cos.shape[1]
    growth = None if rotation is None else rotation.growth
    _rope_write[(rows, parts)](
        query=query,
        key=key,
        value=value,
        query_out=out,
        key_cache=key_cache,
        value_cache=value_cache,
        cos=None if rotation is None else rotation.cos,
        sin=None if rotation is None else rotation.sin,
        positions=None if rotation is None else rotation.positions,
        growth=growth,
        slots=slots,
        query_weight=None if norms is None else norms.query,
        key_weight=None if norms is None else norms.key,
        eps=0.0 if norms is None else norms.eps,
        key_inverse=None if scales is None else scales.key_inverse,
        value_inverse=None if scales is None else scales.value_inverse,
        query_row=query.stride(0),
        key_row=key.stride(0),
        value_row=0 if value is None else value.stride(0),
        head_stride=key_cache.stride(0),
        slot_stride=key_cache.stride(1),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        NORM=norms is not None,
        ROTATE=rotation is not None,
        GROWTH=growth is not None,
        SCALED=scales is not None,
        VALUES=value is not None,
        TILE=tile,
        HALF_BLOCK=triton.next_power_of_2(half),
        REST_BLOCK=triton.next_power_of_2(max(1, head_dim - 2 * half)),
        num_warps=2,
        **launched_early(query.device),
    )
    return out


def check_caches(key_cache: Tensor, value_cache: Tensor) -> None:
    """Raises ValueError unless both caches can be indexed with the same strides."""
    if key_cache.stride() != value_cache.stride() or key_cache.stride(2) != 1:
        raise ValueError(
            f"key and value cache must have equal strides, the last 1: {key_cache.stride()} and "
            f"{value_cache.stride()}"
        )


# Norm and rotation of some heads of a row, for `rope_write`.


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
