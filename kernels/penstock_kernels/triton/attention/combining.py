"""The fold of the splits of queries whose sequences have few new tokens; see `paged`."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.attention.online_softmax import fold, with_sink
from penstock_kernels.triton.attention.query_tiles import first_seen, query_tile
from penstock_kernels.triton.early import await_earlier
from penstock_kernels.triton.rounding import LOWEST, round_to


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
