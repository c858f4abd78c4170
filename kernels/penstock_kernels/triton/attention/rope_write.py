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
class KVScales:
    """Factors by which stored keys and values are multiplied to get the true ones; for FP8
    caches."""

    key: float = 1.0
    value: float = 1.0


UNSCALED = KVScales()


@triton.jit
def _halves(heads, place, mask, HALF: tl.constexpr):
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
def _normed(first, second, weight, head_dim, eps, column, inside, dtype: tl.constexpr):
    """RMS norm of heads given as two halves, rounded to dtype as in the reference."""
    half = head_dim // 2
    squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    root = tl.sqrt_rn(squares / head_dim + eps)[:, None]
    left, right = _pair(weight + column, weight + half + column, inside)
    return rounded(first / root * left, dtype), rounded(second / root * right, dtype)


@triton.jit
def _rotated(first, second, cos, sin, angle, inside):
    """Rotates pairs. `cos` and `sin` are the tables, `angle` the row's indices in them."""
    cosine, sine = _pair(cos + angle, sin + angle, inside)
    return first * cosine - second * sine, second * cosine + first * sine


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
    NORM: tl.constexpr,
    TILE: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    QUERY_PARTS: tl.constexpr = (HEADS + TILE - 1) // TILE
    KEY_PARTS: tl.constexpr = (KV_HEADS + TILE - 1) // TILE
    HALF: tl.constexpr = HEAD_DIM // 2
    column = tl.arange(0, HALF_BLOCK)
    inside = column < HALF
    dtype: tl.constexpr = query.dtype.element_ty
    angle = tl.load(positions + row).to(tl.int64) * HALF + column
    slot = tl.load(slots + row).to(tl.int64)
    if part < QUERY_PARTS:
        head = part * TILE + tl.arange(0, TILE)
        mask = (head < HEADS)[:, None] & inside[None, :]
        place = head[:, None] * HEAD_DIM + column[None, :]
        first, second = _halves(query + row * query_row, place, mask, HALF)
        if NORM:
            first, second = _normed(
                first, second, query_weight, HEAD_DIM, eps, column, inside, dtype
            )
        first, second = _rotated(first, second, cos, sin, angle, inside)
        target = query_out + row * HEADS * HEAD_DIM + place
        tl.store(target, round_to(first, dtype), mask=mask)
        tl.store(target + HALF, round_to(second, dtype), mask=mask)
    elif slot >= 0:
        of_keys = part < QUERY_PARTS + KEY_PARTS
        head = tl.where(of_keys, part - QUERY_PARTS, part - QUERY_PARTS - KEY_PARTS) * TILE
        head = head + tl.arange(0, TILE)
        mask = (head < KV_HEADS)[:, None] & inside[None, :]
        place = head[:, None] * HEAD_DIM + column[None, :]
        stored = head.to(tl.int64)[:, None] * head_stride + slot * slot_stride + column[None, :]
        kept: tl.constexpr = key_cache.dtype.element_ty
        if of_keys:
            first, second = _halves(key + row * key_row, place, mask, HALF)
            if NORM:
                first, second = _normed(
                    first, second, key_weight, HEAD_DIM, eps, column, inside, dtype
                )
            first, second = _rotated(first, second, cos, sin, angle, inside)
            first = rounded(first, dtype) * key_inverse
            second = rounded(second, dtype) * key_inverse
            tl.store(key_cache + stored, round_to(first, kept), mask=mask)
            tl.store(key_cache + stored + HALF, round_to(second, kept), mask=mask)
        else:
            first, second = _halves(value + row * value_row, place, mask, HALF)
            tl.store(value_cache + stored, round_to(first * value_inverse, kept), mask=mask)
            second = second * value_inverse
            tl.store(value_cache + stored + HALF, round_to(second, kept), mask=mask)


def rope_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    norms: QueryKeyNorms | None = None,
    scales: KVScales = UNSCALED,
) -> Tensor:
    """reference.apply_rope of queries and keys, then reference.write_kv, in one pass.

    `query`: [rows, heads, head_dim]; `key`, `value`: [rows, kv_heads, head_dim], of one dtype. Rows
    may be strided (views of one qkv product); the heads of a row are contiguous.
    `cos`, `sin`: [positions, head_dim / 2] float32 tables; `positions`: [rows] int32 or int64.
    `slots`: [rows] int32 or int64, distinct; -1 for padding, which is not written.
    `key_cache`, `value_cache`: [kv_heads, slots, head_dim] with equal strides, float32, bfloat16,
    float16 or float8_e4m3fn. An FP8 cache stores value / scale, saturated. Both are modified.

    Returns the rotated queries, [rows, heads, head_dim].
    """
    rows, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    check_caches(key_cache, value_cache)
    for name, heads_of in (("query", query), ("key", key), ("value", value)):
        if heads_of.stride()[1:] != (head_dim, 1):
            raise ValueError(
                f"{name}: the heads of a row must lie together, not {heads_of.stride()}"
            )
    out = torch.empty(rows, heads, head_dim, dtype=query.dtype, device=query.device)
    if not rows:
        return out
    tile = min(ROTARY_HEADS, triton.next_power_of_2(max(heads, kv_heads)))
    parts = triton.cdiv(heads, tile) + 2 * triton.cdiv(kv_heads, tile)
    _rope_write[(rows, parts)](
        query,
        key,
        value,
        out,
        key_cache,
        value_cache,
        cos,
        sin,
        positions,
        slots,
        query if norms is None else norms.query,
        key if norms is None else norms.key,
        0.0 if norms is None else norms.eps,
        1.0 / scales.key,
        1.0 / scales.value,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        NORM=norms is not None,
        TILE=tile,
        HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
        num_warps=2,
    )
    return out


def check_caches(key_cache: Tensor, value_cache: Tensor) -> None:
    """Raises ValueError unless both caches can be indexed with the same strides."""
    if key_cache.stride() != value_cache.stride() or key_cache.stride(2) != 1:
        raise ValueError(
            f"key and value cache must have equal strides, the last 1: {key_cache.stride()} and "
            f"{value_cache.stride()}"
        )
