"""Attention of encoders within each input of a ragged batch, without a cache.

A program has one (query tile, head) and goes through the keys of its input that the tile sees, in
tiles of fixed size that are counted from the input's first token, by the online softmax (Milakov
and Gimelshein, 2018; Dao et al., 2022). So a query's bits depend on its input alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.attention.online_softmax import online_softmax_step
from penstock_kernels.triton.rounding import LOG2_E, LOWEST, round_to, tanh, tile_dot
from penstock_kernels.triton.tiles import AttentionTiles


@dataclass(frozen=True)
class InputVariant:
    """What the tokens of an input see of it, and how their scores are bent."""

    window: int = 0
    """A token sees those less than so many tokens away, before and after it; 0: all."""
    causal: bool = False
    """Whether a token sees itself and those before it only."""
    soft_cap: float = 0.0
    """Scaled scores x become soft_cap * tanh(x / soft_cap); 0: they stay."""


WHOLE_INPUT = InputVariant()


@dataclass(frozen=True)
class InputPlan:
    """The inputs of one step, the same for every layer. All tensors are int32 and on the device."""

    tiles: AttentionTiles
    starts: Tensor
    """[inputs]: the first row of each input."""
    lengths: Tensor
    """[inputs]: the number of rows of each."""
    tile_inputs: Tensor
    """[tiles]: the input of each query tile."""
    tile_firsts: Tensor
    """[tiles]: the first query of each tile within its input."""


def plan_inputs(lengths: Sequence[int], tiles: AttentionTiles) -> list[np.ndarray]:
    """Returns the tensors of an InputPlan, in its order, on the host. Lengths are at least 1; the
    rows of the inputs follow one another."""
    rows = np.array(lengths, dtype=np.int32)
    counts = -(-rows // tiles.rows)
    inputs = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
    within = np.arange(len(inputs)) - np.repeat(np.cumsum(counts) - counts, counts)
    # Tiles with the most keys first, because they take longest.
    order = np.argsort(-rows[inputs], kind="stable")
    firsts = (within * tiles.rows).astype(np.int32)
    return [(np.cumsum(rows) - rows).astype(np.int32), rows, inputs[order], firsts[order]]


@triton.jit
def _attend_inputs(
    query,
    key,
    value,
    bias,
    out,
    starts,
    lengths,
    tile_inputs,
    tile_firsts,
    scale,
    cap,
    window,
    query_row,
    key_row,
    value_row,
    bias_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    BIAS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    SOFT_CAP: tl.constexpr,
):
    tile, head = tl.program_id(0), tl.program_id(1)
    which = tl.load(tile_inputs + tile)
    start = tl.load(starts + which).to(tl.int64)
    length = tl.load(lengths + which)
    first = tl.load(tile_firsts + tile)
    within = first + tl.arange(0, ROWS)
    column = tl.arange(0, DIM_BLOCK)
    in_head = (column < HEAD_DIM)[None, :]
    mask = (within < length)[:, None] & in_head
    place = (start + within)[:, None] * query_row + head * HEAD_DIM + column[None, :]
    q = tl.load(query + place, mask=mask, other=0.0)
    top = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM_BLOCK], tl.float32)
    kv_place = head // GROUP * HEAD_DIM + column[None, :]
    # Rows after the input see what its last one sees: each has a key to divide by.
    position = tl.minimum(within, length - 1)
    low, end = 0, length
    if WINDOW:
        low = tl.maximum(first - window + 1, 0) // KEYS * KEYS
        end = tl.minimum(end, first + ROWS - 1 + window)
    if CAUSAL:
        end = tl.minimum(end, first + ROWS)
    for base in range(low, end, KEYS):
        at = base + tl.arange(0, KEYS)
        held = at < length
        there = held[:, None] & in_head
        from_row = (start + at)[:, None]
        keys = tl.load(key + from_row * key_row + kv_place, mask=there, other=0.0)
        scores = tile_dot(q, tl.trans(keys), tl.zeros([ROWS, KEYS], tl.float32))
        if SOFT_CAP:
            scores = cap * tanh(scores * scale)
        else:
            scores = scores * scale
        if BIAS:
            # By distance alone: the table's middle is the distance of a token to itself.
            apart = bias_stride // 2 + at[None, :] - within[:, None]
            near = (within < length)[:, None] & held[None, :]
            added = tl.load(bias + head * bias_stride + apart, mask=near, other=0.0)
            scores += added.to(tl.float32) * LOG2_E
        seen = held[None, :]
        if WINDOW:
            seen = seen & (at[None, :] > position[:, None] - window)
            seen = seen & (at[None, :] < position[:, None] + window)
        if CAUSAL:
            seen = seen & (at[None, :] <= position[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        top, keep, weights, total = online_softmax_step(scores, 1.0, top, total)
        values = tl.load(value + from_row * value_row + kv_place, mask=there, other=0.0)
        mixed = tile_dot(round_to(weights, q.dtype), values, mixed * keep[:, None])
    to_row = (start + within)[:, None] * (tl.num_programs(1) * HEAD_DIM)
    result = round_to(mixed / total[:, None], out.dtype.element_ty)
    tl.store(out + to_row + head * HEAD_DIM + column[None, :], result, mask=mask)


def encoder_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: InputPlan,
    bias: Tensor | None = None,
    *,
    scale: float | None = None,
    variant: InputVariant = WHOLE_INPUT,
) -> Tensor:
    """softmax(scale q k^T + bias) v within each input, over what its tokens see of it.

    `query`: [rows, heads, head_dim]; `key`, `value`: [rows, kv_heads, head_dim]; of one dtype
    (float32, bfloat16 or float16). As many query heads share a key head as there are more of them.
    Rows may be strided; the heads of a row are contiguous. All rows are the plan's.
    `bias`: [heads, 2 * positions - 1], contiguous, of any float dtype. What is added to the score
    of a key `d` tokens after the query is in column d + positions - 1. No input is longer than
    `positions`.
    `scale`: None: 1 / sqrt(head_dim).

    Returns [rows, heads, head_dim], multiplied in the query's dtype and accumulated in float32.
    """
    rows, heads, head_dim = query.shape
    if scale is None:
        scale = head_dim**-0.5
    capped = variant.soft_cap > 0
    for each in (query, key, value):
        if each.stride()[1:] != (head_dim, 1):
            raise ValueError(f"the heads of a row must lie together, not {each.stride()}")
    out = torch.empty(rows, heads, head_dim, dtype=query.dtype, device=query.device)
    tiles = plan.tiles
    _attend_inputs[(plan.tile_inputs.shape[0], heads)](
        query=query,
        key=key,
        value=value,
        bias=bias,
        out=out,
        starts=plan.starts,
        lengths=plan.lengths,
        tile_inputs=plan.tile_inputs,
        tile_firsts=plan.tile_firsts,
        scale=scale / variant.soft_cap if capped else scale * LOG2_E.value,
        cap=variant.soft_cap * LOG2_E.value,
        window=variant.window,
        query_row=query.stride(0),
        key_row=key.stride(0),
        value_row=value.stride(0),
        bias_stride=0 if bias is None else bias.shape[1],
        GROUP=heads // key.shape[1],
        HEAD_DIM=head_dim,
        DIM_BLOCK=max(16, triton.next_power_of_2(head_dim)),
        ROWS=tiles.rows,
        KEYS=tiles.keys,
        BIAS=bias is not None,
        WINDOW=variant.window > 0,
        CAUSAL=variant.causal,
        SOFT_CAP=capped,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return out
