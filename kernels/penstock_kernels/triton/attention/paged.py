"""Causal attention of a ragged batch over a paged KV cache: decode and chunked prefill in one.

A query tile consists of consecutive queries of one sequence, times the query heads that share a KV
head (so that a decode with grouped heads reads each key once). Keys are reduced in splits by token
position, and a split in tiles of fixed size from its own beginning, by the online softmax (Milakov
and Gimelshein, 2018; Dao et al., 2022). The splits of a query are combined in order (Dao et al.,
2023, "Flash-Decoding", with a fixed split size instead of a fixed number of splits).

- Few new tokens (decode): a fixed number of programs goes through the list of (tile, split) pairs
  that there are, each of which gives a partial result; `combine` folds these. So a long context
  among short ones brings no programs that have nothing to do.
- Many (prefill): one program per (tile, KV head) goes through the splits and folds them as it goes.
  With a split size of 0 all keys are one split.

Both use the same `_attend_split` and the same `_fold`. A key that a query doesn't see, or a whole
tile or split of such keys, multiplies by exactly 1 and adds exactly 0. So a query's bits depend on
its sequence alone, and with equal tiles in both forms not even on how its tokens were divided into
chunks. With equal tiles and different splits, that is so among chunks, and among decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.attention.online_softmax import fold, with_sink
from penstock_kernels.triton.attention.paged_kernels import attend
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan, TileList
from penstock_kernels.triton.attention.query_tiles import first_seen, query_tile
from penstock_kernels.triton.attention.rope_write import check_caches
from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.rounding import LOG2_E, LOWEST, round_to
from penstock_kernels.triton.tiles import (
    ATTENTION_PROGRAMS,
    COMBINE_STAGES,
    LISTED_TILES,
    PAIRED_ROWS,
    PARTIAL_BYTES,
    AttentionTiles,
)


@dataclass(frozen=True)
class Variant:
    """What an attention layer does otherwise than plain causal attention: the keys that a query
    sees, and how its scores are bent."""

    window: int = 0
    """A query sees its own key and the window - 1 before it; 0 for all before it."""
    soft_cap: float = 0.0
    """Scores become soft_cap * tanh(score / soft_cap); 0 leaves them as they are."""
    chunk: int = 0
    """A query sees the keys of its chunk of so many positions up to its own; 0: all. Not with a
    window."""


FULL = Variant()

PARTIALS = ("partial_values", "partial_peaks", "partial_weights")
"""Parameters of the kernels for partial results of single splits."""


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: DeviceAttentionPlan,
    scale: float,
    *,
    variant: Variant = FULL,
    scales: KVScales | None = None,
    sinks: Tensor | None = None,
    turning: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v for every query over its sequence's cache.

    `query`: [rows, heads, head_dim], float32, bfloat16 or float16. Rows beyond the plan's are
    padding; rows may be strided.
    `key_cache`, `value_cache`: as written by rope_write, of any dtype that it supports; multiplied
    in the query's dtype and accumulated in float32. heads is a multiple of kv_heads, and query head
    h reads KV head h // (heads // kv_heads).
    `scales`: those with which the cache was written, of latents one for each group of query heads;
    None: all are 1.
    `sinks`: [heads] float32: a score of each head, which takes part in the softmax without a value.
    `turning`: if it isn't 0, a key is so many numbers and then its value (see LatentSpec), and
    `value_cache` isn't read. All heads share the one KV head, plan.group of them at a time.
    `out`: what the rows of the plan's tiles are written to, like the result; its other rows stay
    as they are. None: a new tensor.

    Returns [rows, heads, size of a value] in the query's dtype; padding rows are zero.
    """
    check_caches(key_cache, value_cache)
    if query.stride()[1:] != (query.shape[2], 1):
        raise ValueError(f"query: the heads of a row must lie together, not {query.stride()}")
    if out is None:
        make = torch.empty if plan.covers(query.shape[0]) else torch.zeros
        sizes = (*query.shape[:2], query.shape[2] - turning)
        out = make(sizes, dtype=query.dtype, device=query.device)
    for tiles, shape, partial in (
        (plan.few, plan.choice.few, True),
        (plan.many, plan.choice.many, False),
    ):
        if tiles is not None:
            call = _Call(
                query, key_cache, value_cache, out, plan, scale, variant, scales, sinks, turning
            )
            call.launch(tiles, shape, partial=partial)
    return out


def tiles_at_once(values: int) -> int:
    """Returns the number of tiles per launch. `values` is the number of values in the partial
    results of one tile.

    One long context gives every tile of a step as many splits, and those of the others could take
    gigabytes. The result is a multiple of 16, so that the lists of all launches have the same
    alignment.
    """
    return min(LISTED_TILES, max(16, PARTIAL_BYTES // (4 * max(values, 1)) // 16 * 16))


@dataclass(frozen=True)
class _Call:
    """The arguments of paged_attention, for its launches."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    out: Tensor
    plan: DeviceAttentionPlan
    scale: float
    variant: Variant
    scales: KVScales | None
    sinks: Tensor | None
    turning: int

    @property
    def kv_heads(self) -> int:
        """KV heads of a layer. For latents the one that there is counts once for each group of
        query heads."""
        return self.query.shape[1] // self.plan.group

    @property
    def head_stride(self) -> int:
        return 0 if self.turning else self.key_cache.stride(0)

    @property
    def _has_pairs(self) -> bool:
        """Whether two neighbouring bytes of values can be read as one number."""
        cache, of = self.value_cache, self.query.dtype
        begins = (cache.data_ptr(), cache.shape[2], *cache.stride()[:2])
        small = cache.dtype == torch.float8_e4m3fn and of.itemsize == 2
        return small and not self.turning and all(begin % 2 == 0 for begin in begins)

    @property
    def value_size(self) -> int:
        return self.key_cache.shape[2] - self.turning

    def launch(self, tiles: TileList, shape: AttentionTiles, *, partial: bool) -> None:
        kv_heads, head_dim = self.kv_heads, self.value_size
        count = tiles.sequences.shape[0]
        rows = tiles.queries * self.plan.group if partial else 0
        splits = self._splits(tiles, shape) if partial else 1
        at_once = min(count, tiles_at_once(kv_heads * splits * rows * head_dim))
        partials: dict[str, Tensor | None] = dict.fromkeys(PARTIALS)
        if partial:
            sizes = (at_once, kv_heads, splits, rows)
            partials["partial_values"] = self._partial(*sizes, head_dim)
            partials["partial_peaks"] = self._partial(*sizes)
            partials["partial_weights"] = self._partial(*sizes)
        for begin in range(0, count, at_once):
            part = slice(begin, begin + at_once)
            self._launch(tiles.part(part), shape, rows, splits, partials)

    def _launch(
        self,
        tiles: TileList,
        shape: AttentionTiles,
        rows: int,
        splits: int,
        partials: Mapping[str, Tensor | None],
    ) -> None:
        """`rows` is the number of rows in a tile's partial results; 0 if there are none. Operands
        of what isn't computed are None."""
        plan, variant = self.plan, self.variant
        kv_heads, head_dim = self.kv_heads, self.value_size
        count = tiles.sequences.shape[0]
        scales = self.scales
        common: dict[str, Any] = {
            **partials,
            "out": self.out,
            "sinks": self.sinks,
            "tile_sequences": tiles.sequences,
            "tile_firsts": tiles.firsts,
            "tile_ends": tiles.ends,
            "query_starts": plan.query_starts,
            "query_lens": plan.query_lens,
            "seq_lens": plan.seq_lens,
            "value_scales": None if scales is None else scales.value,
            "window": self._limit,
            "splits": splits,
            "GROUP": plan.group,
            "HEAD_DIM": head_dim,
            "DIM_BLOCK": triton.next_power_of_2(head_dim),
            "SPLIT": shape.split,
            "PARTIAL_ROWS": rows,
            "WINDOW": self._limit > 0,
            "CHUNKS": variant.chunk > 0,
            "SPANS": plan.last_seen is not None,
            "SINKS": self.sinks is not None,
            "SCALED": scales is not None,
            **launched_early(self.query.device),
        }
        scale, cap = self._score_scales()
        programs = count
        if rows:
            programs = min(count * splits, max(1, ATTENTION_PROGRAMS // kv_heads))
        attend[(programs, kv_heads)](
            query=self.query,
            key_cache=self.key_cache,
            value_cache=self.value_cache,
            tables=plan.tables,
            last_seen=plan.last_seen,
            scale=scale,
            cap=cap,
            key_scales=None if scales is None else scales.key,
            table_stride=plan.tables.stride(0),
            query_stride=self.query.stride(0),
            head_stride=self.head_stride,
            slot_stride=self.key_cache.stride(1),
            tiles=count,
            TILES=LISTED_TILES,
            TURNING=self.turning,
            TURNING_BLOCK=max(16, triton.next_power_of_2(self.turning)),
            BLOCK_SIZE=plan.block_size,
            ROWS=shape.rows,
            KEYS=shape.keys,
            SOFT_CAP=variant.soft_cap > 0,
            PAIRED=shape.rows <= PAIRED_ROWS and self._has_pairs,
            num_warps=shape.warps,
            num_stages=shape.stages,
            maxnreg=shape.registers if rows else None,
            **common,
        )
        if rows:
            combine[(count, kv_heads, rows)](
                QUERIES=rows // plan.group,
                STAGES=COMBINE_STAGES,
                num_warps=1,
                **common,
            )

    def _splits(self, tiles: TileList, shape: AttentionTiles) -> int:
        """Returns the largest number of splits that a tile reaches."""
        whole = triton.cdiv(tiles.end, shape.split)
        if not self._limit or tiles.ends is not None:
            return whole
        return min(whole, triton.cdiv(self._limit + tiles.queries, shape.split) + 1)

    @property
    def _limit(self) -> int:
        """Tokens of a window or of a chunk; 0: there is none."""
        return self.variant.window or self.variant.chunk

    def _partial(self, *sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=torch.float32, device=self.query.device)

    def _score_scales(self) -> tuple[float, float]:
        """Returns the factors of the product before and after the soft cap. They include log2(e),
        since the softmax computes powers of two."""
        if self.variant.soft_cap:
            return self.scale / self.variant.soft_cap, self.variant.soft_cap * LOG2_E.value
        return self.scale * LOG2_E.value, 1.0


@triton.jit(do_not_specialize=["splits"])
def combine(
    partial_values,
    partial_peaks,
    partial_weights,
    sinks,
    out,
    tile_sequences,
    tile_firsts,
    tile_ends,
    query_starts,
    query_lens,
    seq_lens,
    value_scales,
    window,
    splits,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTIAL_ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPANS: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Folds the partial results of one row of a tile, in the order of its splits, with STAGES - 2
    of those that follow on their way. A decode's padding rows are set to zero here, which saves one
    kernel per layer that would zero the output; padding that has no row begins at -1."""
    await_earlier(EARLY)
    tile, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence, first, queries, before = query_tile(
        tile, tile_sequences, tile_firsts, query_lens, seq_lens
    )
    within = first + row // GROUP
    query_row = (tl.load(query_starts + sequence) + within).to(tl.int64)
    head = kv_head * GROUP + row % GROUP
    target = out + (query_row * tl.num_programs(1) * GROUP + head) * HEAD_DIM
    column = tl.arange(0, DIM_BLOCK)
    mask = column < HEAD_DIM
    if within < queries:
        # The splits that the tile wrote, some of which this row may not attend to.
        begin = 0
        if WINDOW:
            begin = tl.maximum(0, first_seen(before + first, window, CHUNKS)) // SPLIT
        end = before + tl.minimum(first + QUERIES, queries)
        if SPANS:
            end = tl.load(tile_ends + tile)
        end = tl.cdiv(end, SPLIT)
        part = (tile * tl.num_programs(1) + kv_head).to(tl.int64) * splits
        place = part * PARTIAL_ROWS + row
        top = LOWEST
        total = 0.0
        mixed = tl.zeros([DIM_BLOCK], tl.float32)
        for _ in tl.range(begin, end, num_stages=STAGES):
            peak = tl.load(partial_peaks + place)
            weight = tl.load(partial_weights + place)
            values = tl.load(partial_values + place * HEAD_DIM + column, mask=mask, other=0.0)
            top, total, mixed = fold(top, total, mixed, peak, weight, values)
            place += PARTIAL_ROWS
        if SINKS:
            total, mixed = with_sink(top, total, mixed, tl.load(sinks + head))
        value_scale = 1.0
        if SCALED:
            value_scale = tl.load(value_scales + kv_head)
        result = round_to(mixed * (value_scale / total), out.dtype.element_ty)
        tl.store(target + column, result, mask=mask)
    elif PARTIAL_ROWS == GROUP:
        # Tiles of one query: only a padding sequence has none.
        zeros = tl.zeros([DIM_BLOCK], out.dtype.element_ty)
        tl.store(target + column, zeros, mask=mask & (query_row >= 0))
