"""Causal attention of a ragged batch over a paged KV cache: decode and chunked prefill in one.

A query tile is some consecutive queries of one sequence, times the query heads that share a KV head
(so that a decode of grouped heads reads each key once).  Keys are reduced in splits by token
position, a split in tiles of fixed size from its own beginning, by the online softmax (Milakov and
Gimelshein, 2018; Dao et al., 2022); the splits of a query are folded together in order (Dao et al.,
2023, "Flash-Decoding", with a fixed split instead of a fixed number of splits).

- few new tokens (decode): a program for each (tile, KV head, split) leaves a partial result, and
  `_combine` folds them;
- many (prefill): a program for each (tile, KV head) goes through the splits and folds as it goes.

Both run the same `_attend_split` and the same `_fold`.  A key that a query doesn't see, and a whole
tile or split of them, multiplies by exactly 1 and adds exactly 0.  So a query's bits follow from
its sequence alone, and with equal tiles in both forms not even from how the tokens were chunked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.attention.online_softmax import online_softmax_step
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan, TileList
from penstock_kernels.triton.attention.rope_write import UNSCALED, KVScales, check_caches
from penstock_kernels.triton.rounding import LOG2_E, LOWEST, round_to, tanh, tile_dot
from penstock_kernels.triton.tiles import AttentionTiles


@dataclass(frozen=True)
class Reach:
    """What limits a query's sight."""

    window: int = 0
    """A query sees its own key and the window - 1 before it; 0: all before it."""
    soft_cap: float = 0.0
    """Scores become soft_cap * tanh(score / soft_cap); 0: they stay as they are."""


FULL = Reach()

PARTIAL_BYTES = 128 << 20
"""Memory for partial results: of decodes with 8 KV heads of 128, each for 4 query heads, 8,192
splits at once, which are programs enough for any device."""


@triton.jit
def _operand(x, dtype: tl.constexpr):
    if x.dtype == dtype:
        return x
    return round_to(x.to(tl.float32), dtype)


@triton.jit
def _fold(top, total, mixed, peak, weight, values):
    """Two partial softmaxes as one.  Spelt with fma, so that no compiler chooses how to fuse."""
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
def _query_tile(tile, tile_sequences, tile_firsts, query_lens, seq_lens):
    """(its sequence, its first query there, the sequence's new tokens, and those before them)."""
    sequence = tl.load(tile_sequences + tile)
    first = tl.load(tile_firsts + tile)
    queries = tl.load(query_lens + sequence)
    return sequence, first, queries, tl.load(seq_lens + sequence) - queries


@triton.jit
def _attend_split(
    q,
    position,
    split,
    low,
    end,
    key_head,
    value_head,
    table,
    slot_stride,
    scale,
    cap,
    window,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
):
    """Row maxima, sums and weighted values over the keys of one split in [low, end)."""
    DIM_BLOCK: tl.constexpr = q.shape[1]
    column = tl.arange(0, DIM_BLOCK)
    in_head = (column < HEAD_DIM)[None, :]
    top = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM_BLOCK], tl.float32)
    start = split * SPLIT
    if WINDOW:
        start = tl.maximum(start, low // KEYS * KEYS)
    for base in range(start, tl.minimum(split * SPLIT + SPLIT, end), KEYS):
        at = base + tl.arange(0, KEYS)
        held = (at >= low) & (at < end)
        block = tl.load(table + at // BLOCK_SIZE, mask=held, other=0).to(tl.int64)
        place = (block * BLOCK_SIZE + at % BLOCK_SIZE) * slot_stride
        place = place[:, None] + column[None, :]
        mask = held[:, None] & in_head
        key = _operand(tl.load(key_head + place, mask=mask, other=0.0), q.dtype)
        scores = tile_dot(q, tl.trans(key), tl.zeros([ROWS, KEYS], tl.float32))
        if SOFT_CAP:
            scores = cap * tanh(scores * scale)
        else:
            scores = scores * scale
        seen = at[None, :] <= position[:, None]
        if WINDOW:
            seen = seen & (at[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        top, keep, weights, total = online_softmax_step(scores, top, total)
        value = _operand(tl.load(value_head + place, mask=mask, other=0.0), q.dtype)
        mixed = tile_dot(round_to(weights, q.dtype), value, mixed * keep[:, None])
    return top, total, mixed


@triton.jit(do_not_specialize=["table_stride"])
def _attend(
    query,
    key_cache,
    value_cache,
    out,
    partial_values,
    partial_peaks,
    partial_weights,
    tables,
    tile_sequences,
    tile_firsts,
    query_starts,
    query_lens,
    seq_lens,
    scale,
    cap,
    value_scale,
    window,
    table_stride,
    query_stride,
    head_stride,
    slot_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTIAL_ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
):
    """PARTIAL_ROWS: rows of a tile that may be real, where this program has one split; 0: it has
    all splits."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    QUERIES: tl.constexpr = ROWS // GROUP
    sequence, first, queries, before = _query_tile(
        tile, tile_sequences, tile_firsts, query_lens, seq_lens
    )
    row = tl.arange(0, ROWS)
    within = first + row // GROUP
    real = (row < QUERIES * GROUP) & (within < queries)
    head = kv_head * GROUP + row % GROUP
    position = before + within
    end = before + tl.minimum(first + QUERIES, queries)
    low = 0
    if WINDOW:
        low = tl.maximum(0, before + first - window + 1)
    column = tl.arange(0, DIM_BLOCK)
    mask = real[:, None] & (column < HEAD_DIM)[None, :]
    query_row = (tl.load(query_starts + sequence) + within).to(tl.int64)
    q = tl.load(
        query + query_row[:, None] * query_stride + head[:, None] * HEAD_DIM + column[None, :],
        mask=mask,
        other=0.0,
    )
    key_head = key_cache + kv_head.to(tl.int64) * head_stride
    value_head = value_cache + kv_head.to(tl.int64) * head_stride
    table = tables + sequence.to(tl.int64) * table_stride
    if PARTIAL_ROWS > 0:
        split = low // SPLIT + tl.program_id(2)
        if split * SPLIT < end:
            top, total, mixed = _attend_split(
                q, position, split, low, end, key_head, value_head, table, slot_stride, scale, cap,
                window, HEAD_DIM, BLOCK_SIZE, ROWS, KEYS, SPLIT, WINDOW, SOFT_CAP,
            )  # fmt: skip
            part = (tile * tl.num_programs(1) + kv_head).to(tl.int64) * tl.num_programs(2)
            place = (part + tl.program_id(2)) * PARTIAL_ROWS + row
            tl.store(partial_peaks + place, top, mask=real)
            tl.store(partial_weights + place, total, mask=real)
            tl.store(partial_values + place[:, None] * HEAD_DIM + column[None, :], mixed, mask=mask)
    else:
        top = tl.full([ROWS], LOWEST, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, DIM_BLOCK], tl.float32)
        for split in range(low // SPLIT, tl.cdiv(end, SPLIT)):
            peak, weight, values = _attend_split(
                q, position, split, low, end, key_head, value_head, table, slot_stride, scale, cap,
                window, HEAD_DIM, BLOCK_SIZE, ROWS, KEYS, SPLIT, WINDOW, SOFT_CAP,
            )  # fmt: skip
            top, total, mixed = _fold(top, total, mixed, peak, weight, values)
        # Rows that aren't real see whatever keys, or none: their total may be 0.
        share = value_scale / tl.where(real, total, 1.0)
        result = round_to(mixed * share[:, None], out.dtype.element_ty)
        heads = tl.num_programs(1) * GROUP
        place = (query_row[:, None] * heads + head[:, None]) * HEAD_DIM + column[None, :]
        tl.store(out + place, result, mask=mask)


@triton.jit(do_not_specialize=["splits"])
def _combine(
    partial_values,
    partial_peaks,
    partial_weights,
    out,
    tile_sequences,
    tile_firsts,
    query_starts,
    query_lens,
    seq_lens,
    value_scale,
    window,
    splits,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTIAL_ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Folds the partial results of one row of a tile, in the order of its splits.  A decode's
    padding becomes zero here, which is a kernel less in each layer than zeros everywhere before."""
    tile, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence, first, queries, before = _query_tile(
        tile, tile_sequences, tile_firsts, query_lens, seq_lens
    )
    within = first + row // GROUP
    query_row = (tl.load(query_starts + sequence) + within).to(tl.int64)
    head = kv_head * GROUP + row % GROUP
    target = out + (query_row * tl.num_programs(1) * GROUP + head) * HEAD_DIM
    column = tl.arange(0, DIM_BLOCK)
    mask = column < HEAD_DIM
    if within < queries:
        # The splits that the tile wrote, some of which this row may not see.
        begin = 0
        if WINDOW:
            begin = tl.maximum(0, before + first - window + 1) // SPLIT
        end = tl.cdiv(before + tl.minimum(first + QUERIES, queries), SPLIT)
        part = (tile * tl.num_programs(1) + kv_head).to(tl.int64) * splits
        place = part * PARTIAL_ROWS + row
        top = LOWEST
        total = 0.0
        mixed = tl.zeros([DIM_BLOCK], tl.float32)
        for _ in range(begin, end):
            peak = tl.load(partial_peaks + place)
            weight = tl.load(partial_weights + place)
            values = tl.load(partial_values + place * HEAD_DIM + column, mask=mask, other=0.0)
            top, total, mixed = _fold(top, total, mixed, peak, weight, values)
            place += PARTIAL_ROWS
        result = round_to(mixed * (value_scale / total), out.dtype.element_ty)
        tl.store(target + column, result, mask=mask)
    elif PARTIAL_ROWS == GROUP:
        # Tiles of one query: only a sequence of the padding has none.
        tl.store(target + column, tl.zeros([DIM_BLOCK], out.dtype.element_ty), mask=mask)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: DeviceAttentionPlan,
    scale: float,
    *,
    reach: Reach = FULL,
    scales: KVScales = UNSCALED,
) -> Tensor:
    """softmax(scale * q k^T) v for every query over its sequence's cache.

    query: [rows, heads, head_dim], float32, bfloat16 or float16; rows beyond the plan's are
    padding; rows may be strided.  key_cache, value_cache: as rope_write leaves them, of any type
    that it takes; multiplied in the query's type and accumulated in float32.  heads is a multiple
    of kv_heads, and query head h reads KV head h // (heads // kv_heads).
    Returns [rows, heads, head_dim] of the query's dtype; padding rows are zero.
    """
    check_caches(key_cache, value_cache)
    if query.stride()[1:] != (query.shape[2], 1):
        raise ValueError(f"query: the heads of a row must lie together, not {query.stride()}")
    make = torch.empty if plan.covers(query.shape[0]) else torch.zeros
    out = make(query.shape, dtype=query.dtype, device=query.device)
    for tiles, shape, partial in (
        (plan.few, plan.choice.few, True),
        (plan.many, plan.choice.many, False),
    ):
        if tiles is not None:
            call = _Call(query, key_cache, value_cache, out, plan, scale, reach, scales)
            call.launch(tiles, shape, partial=partial)
    return out


def tiles_at_once(values: int) -> int:
    """Tiles of one launch. values: of a tile's partial results.

    One long context gives every tile of a step as many splits: the others' would take gigabytes.
    A multiple of 16, so that each launch's lists are aligned alike.
    """
    return max(16, PARTIAL_BYTES // (4 * max(values, 1)) // 16 * 16)


@dataclass(frozen=True)
class _Call:
    """The arguments of paged_attention, for its launches."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    out: Tensor
    plan: DeviceAttentionPlan
    scale: float
    reach: Reach
    scales: KVScales

    def launch(self, tiles: TileList, shape: AttentionTiles, *, partial: bool) -> None:
        kv_heads, _, head_dim = self.key_cache.shape
        count = tiles.sequences.shape[0]
        rows = tiles.queries * self.plan.group if partial else 0
        splits = self._splits(tiles, shape) if partial else 1
        at_once = min(count, tiles_at_once(kv_heads * splits * rows * head_dim))
        values = self._partial(at_once, kv_heads, splits, rows, head_dim)
        peaks = self._partial(at_once, kv_heads, splits, rows)
        weights = self._partial(at_once, kv_heads, splits, rows)
        for begin in range(0, count, at_once):
            part = slice(begin, begin + at_once)
            some = replace(tiles, sequences=tiles.sequences[part], firsts=tiles.firsts[part])
            self._launch(some, shape, rows, splits, (values, peaks, weights))

    def _launch(
        self,
        tiles: TileList,
        shape: AttentionTiles,
        rows: int,
        splits: int,
        partials: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """rows: of partials' tiles; 0: there are none."""
        plan, reach = self.plan, self.reach
        kv_heads, _, head_dim = self.key_cache.shape
        count = tiles.sequences.shape[0]
        where = (
            tiles.sequences, tiles.firsts, plan.query_starts, plan.query_lens, plan.seq_lens
        )  # fmt: skip
        common = {
            "GROUP": plan.group,
            "HEAD_DIM": head_dim,
            "DIM_BLOCK": triton.next_power_of_2(head_dim),
            "SPLIT": shape.split,
            "PARTIAL_ROWS": rows,
            "WINDOW": reach.window > 0,
        }
        scale, cap = self._score_scales()
        _attend[(count, kv_heads, splits)](
            self.query,
            self.key_cache,
            self.value_cache,
            self.out,
            *partials,
            plan.tables,
            *where,
            scale,
            cap,
            self.scales.value,
            reach.window,
            plan.tables.stride(0),
            self.query.stride(0),
            self.key_cache.stride(0),
            self.key_cache.stride(1),
            BLOCK_SIZE=plan.block_size,
            ROWS=shape.rows,
            KEYS=shape.keys,
            SOFT_CAP=reach.soft_cap > 0,
            num_warps=shape.warps,
            num_stages=shape.stages,
            **common,
        )
        if rows:
            _combine[(count, kv_heads, rows)](
                *partials,
                self.out,
                *where,
                self.scales.value,
                reach.window,
                splits,
                QUERIES=shape.rows // plan.group,
                num_warps=1,
                **common,
            )

    def _splits(self, tiles: TileList, shape: AttentionTiles) -> int:
        """The most that a tile reaches."""
        whole = triton.cdiv(tiles.end, shape.split)
        if not self.reach.window:
            return whole
        return min(whole, triton.cdiv(self.reach.window + tiles.queries, shape.split) + 1)

    def _partial(self, *sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=torch.float32, device=self.query.device)

    def _score_scales(self) -> tuple[float, float]:
        """What the product is multiplied with first, and after the soft cap: softmax runs on powers
        of two."""
        scale = self.scale * self.scales.key
        if self.reach.soft_cap:
            return scale / self.reach.soft_cap, self.reach.soft_cap * LOG2_E.value
        return scale * LOG2_E.value, 1.0
