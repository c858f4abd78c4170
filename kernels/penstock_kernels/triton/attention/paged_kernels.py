"""The kernels of attention over a paged KV cache; see `paged`."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.attention.key_places import key_places
from penstock_kernels.triton.attention.online_softmax import fold, online_softmax_step, with_sink
from penstock_kernels.triton.attention.paired_values import interleaved, pairs_to
from penstock_kernels.triton.attention.query_tiles import (
    first_seen,
    query_tile,
    splits_of_tiles,
)
from penstock_kernels.triton.early import await_earlier
from penstock_kernels.triton.rounding import LOWEST, round_to, tanh, tile_dot


@triton.jit
def _operand(x, dtype: tl.constexpr):
    if x.dtype == dtype:
        return x
    return round_to(x.to(tl.float32), dtype)


@triton.jit
def _attend_keys(
    base,
    top,
    total,
    mixed,
    mixed_odd,
    q,
    q_turning,
    position,
    last,
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
    TURNING: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    MASKED: tl.constexpr,
    PAIRED: tl.constexpr,
):
    """Adds the keys of one tile, from `base` on. Without MASKED, each row sees all of them, and the
    sums have the bits that they have with it: no product is next to a sum that the compiler could
    fuse it with in only one of the two."""
    at = base + tl.arange(0, KEYS)
    place = key_places(table, base, low, end, slot_stride, BLOCK_SIZE, KEYS, MASKED)[:, None]
    column = tl.arange(0, q.shape[1])
    mask = tl.broadcast_to((column < HEAD_DIM)[None, :], [KEYS, q.shape[1]])
    if MASKED:
        held = ((at >= low) & (at < end))[:, None]
        mask &= held
    key = _operand(tl.load(key_head + (place + column[None, :]), mask=mask, other=0.0), q.dtype)
    scores = tile_dot(q, tl.trans(key), tl.zeros([ROWS, KEYS], tl.float32))
    if TURNING > 0:
        turning = tl.arange(0, q_turning.shape[1])
        front = place + (turning[None, :] - TURNING)
        mask_front = tl.broadcast_to((turning < TURNING)[None, :], front.shape)
        if MASKED:
            mask_front &= held
        first = _operand(tl.load(key_head + front, mask=mask_front, other=0.0), q.dtype)
        scores = tile_dot(q_turning, tl.trans(first), scores)
    if SOFT_CAP:
        scores, scale = cap * tanh(scores * scale), 1.0
    if MASKED:
        seen = at[None, :] <= last[:, None]
        if WINDOW:
            seen = seen & (at[None, :] >= first_seen(position, window, CHUNKS)[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    top, keep, weights, total = online_softmax_step(scores, scale, top, total)
    weights = round_to(weights, q.dtype)
    mixed *= keep[:, None]
    if PAIRED:
        pair = tl.arange(0, q.shape[1] // 2)
        mask_pairs = tl.broadcast_to((pair < HEAD_DIM // 2)[None, :], [KEYS, q.shape[1] // 2])
        if MASKED:
            mask_pairs &= held
        at_pairs = value_head.to(tl.pointer_type(tl.int16), bitcast=True)
        at_pairs += place // 2 + pair[None, :]
        even, odd = pairs_to(tl.load(at_pairs, mask=mask_pairs, other=0), q.dtype)
        mixed = tile_dot(weights, even, mixed)
        mixed_odd = tile_dot(weights, odd, mixed_odd * keep[:, None])
    else:
        value = key
        if TURNING == 0:
            at_values = value_head + (place + column[None, :])
            value = _operand(tl.load(at_values, mask=mask, other=0.0), q.dtype)
        mixed = tile_dot(weights, value, mixed)
    return top, total, mixed, mixed_odd


@triton.jit
def _attend_split(
    q,
    q_turning,
    position,
    last,
    split,
    low,
    all_see,
    end,
    key_head,
    value_head,
    table,
    slot_stride,
    scale,
    cap,
    window,
    HEAD_DIM: tl.constexpr,
    TURNING: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WHOLE: tl.constexpr,
    PAIRED: tl.constexpr,
):
    """Returns row maxima, sums and weighted values over the keys of one split in [low, end); if
    SPLIT is 0, over all of them. `last` is the last key that each row sees. `key_head` is where the
    part of keys begins that TURNING numbers lie in front of. With WHOLE, tiles of keys below
    `all_see`, which all rows see, come first and without masks; there is no window then."""
    DIM_BLOCK: tl.constexpr = q.shape[1]
    top = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM_BLOCK // 2 if PAIRED else DIM_BLOCK], tl.float32)
    mixed_odd = mixed if PAIRED else 0.0
    start, stop = split * SPLIT, end
    if SPLIT > 0:
        stop = tl.minimum(split * SPLIT + SPLIT, end)
    if WINDOW:
        start = tl.maximum(start, low // KEYS * KEYS)
    if WHOLE:
        whole = tl.maximum(tl.minimum(all_see, stop) - start, 0) // KEYS * KEYS
        for base in range(start, start + whole, KEYS):
            top, total, mixed, mixed_odd = _attend_keys(
                base, top, total, mixed, mixed_odd, q, q_turning, position, last, low, end,
                key_head, value_head, table, slot_stride, scale, cap, window, HEAD_DIM, TURNING,
                BLOCK_SIZE, ROWS, KEYS, WINDOW, CHUNKS, SOFT_CAP, False, PAIRED,
            )  # fmt: skip
        start += whole
    for base in range(start, stop, KEYS):
        top, total, mixed, mixed_odd = _attend_keys(
            base, top, total, mixed, mixed_odd, q, q_turning, position, last, low, end, key_head,
            value_head, table, slot_stride, scale, cap, window, HEAD_DIM, TURNING, BLOCK_SIZE,
            ROWS, KEYS, WINDOW, CHUNKS, SOFT_CAP, True, PAIRED,
        )  # fmt: skip
    if PAIRED:
        mixed = interleaved(mixed, mixed_odd)
    return top, total, mixed


@triton.jit
def _attend_tile(
    tile,
    nth,
    kv_head,
    query,
    key_cache,
    value_cache,
    out,
    partial_values,
    partial_peaks,
    partial_weights,
    sinks,
    tables,
    tile_sequences,
    tile_firsts,
    tile_ends,
    last_seen,
    query_starts,
    query_lens,
    seq_lens,
    scale,
    cap,
    key_scales,
    value_scales,
    window,
    table_stride,
    query_stride,
    head_stride,
    slot_stride,
    splits,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    TURNING: tl.constexpr,
    TURNING_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTIAL_ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPANS: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PAIRED: tl.constexpr,
):
    """A tile's keys: those of its nth split that any row sees, or all of them. A program that has
    all splits spends most of its time on tiles of keys that all rows see; in a decode, whose keys
    come from memory as fast as they can, a second loop would only drain its loads."""
    WHOLE: tl.constexpr = PARTIAL_ROWS == 0 and not WINDOW and not SPANS
    QUERIES: tl.constexpr = (PARTIAL_ROWS if PARTIAL_ROWS > 0 else ROWS) // GROUP
    sequence, first, queries, before = query_tile(
        tile, tile_sequences, tile_firsts, query_lens, seq_lens
    )
    row = tl.arange(0, ROWS)
    within = first + row // GROUP
    stop = tl.minimum(first + QUERIES, queries)
    real = within < stop
    head = kv_head * GROUP + row % GROUP
    position = before + within
    end = before + stop
    low, all_see = 0, before + first + 1
    if WINDOW:
        low = tl.maximum(0, first_seen(before + first, window, CHUNKS))
    column = tl.arange(0, DIM_BLOCK)
    mask = real[:, None] & (column < HEAD_DIM)[None, :]
    query_row = (tl.load(query_starts + sequence) + within).to(tl.int64)
    last = position
    if SPANS:
        last = tl.load(last_seen + query_row, mask=real, other=-1)
        end = tl.load(tile_ends + tile)
    own = query + query_row[:, None] * query_stride + head[:, None] * (TURNING + HEAD_DIM)
    q = tl.load(own + (TURNING + column)[None, :], mask=mask, other=0.0)
    q_turning = q
    if TURNING > 0:
        turning = tl.arange(0, TURNING_BLOCK)
        mask_front = real[:, None] & (turning < TURNING)[None, :]
        q_turning = tl.load(own + turning[None, :], mask=mask_front, other=0.0)
    key_head = key_cache + kv_head.to(tl.int64) * head_stride + TURNING
    value_head = value_cache + kv_head.to(tl.int64) * head_stride
    table = tables + sequence.to(tl.int64) * table_stride
    value_scale = 1.0
    if SCALED:
        scale *= tl.load(key_scales + kv_head)
        value_scale = tl.load(value_scales + kv_head)
    if PARTIAL_ROWS > 0:
        split = low // SPLIT + nth
        top, total, mixed = _attend_split(
            q, q_turning, position, last, split, low, all_see, end, key_head, value_head, table,
            slot_stride, scale, cap, window, HEAD_DIM, TURNING, BLOCK_SIZE, ROWS, KEYS, SPLIT,
            WINDOW, CHUNKS, SOFT_CAP, WHOLE, PAIRED,
        )  # fmt: skip
        part = (tile * tl.num_programs(1) + kv_head).to(tl.int64) * splits
        place = (part + nth) * PARTIAL_ROWS + row
        tl.store(partial_peaks + place, top, mask=real)
        tl.store(partial_weights + place, total, mask=real)
        tl.store(partial_values + place[:, None] * HEAD_DIM + column[None, :], mixed, mask=mask)
    else:
        if SPLIT == 0:
            top, total, mixed = _attend_split(
                q, q_turning, position, last, 0, low, all_see, end, key_head, value_head, table,
                slot_stride, scale, cap, window, HEAD_DIM, TURNING, BLOCK_SIZE, ROWS, KEYS, SPLIT,
                WINDOW, CHUNKS, SOFT_CAP, WHOLE, PAIRED,
            )  # fmt: skip
        else:
            top = tl.full([ROWS], LOWEST, tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            mixed = tl.zeros([ROWS, DIM_BLOCK], tl.float32)
            for split in range(low // SPLIT, tl.cdiv(end, SPLIT)):
                peak, weight, values = _attend_split(
                    q, q_turning, position, last, split, low, all_see, end, key_head, value_head,
                    table, slot_stride, scale, cap, window, HEAD_DIM, TURNING, BLOCK_SIZE, ROWS,
                    KEYS, SPLIT, WINDOW, CHUNKS, SOFT_CAP, WHOLE, PAIRED,
                )  # fmt: skip
                top, total, mixed = fold(top, total, mixed, peak, weight, values)
        if SINKS:
            total, mixed = with_sink(top, total, mixed, tl.load(sinks + head))
        # Padding rows see arbitrary keys, or none, so that their total may be 0.
        share = value_scale / tl.where(real, total, 1.0)
        result = round_to(mixed * share[:, None], out.dtype.element_ty)
        heads = tl.num_programs(1) * GROUP
        place = (query_row[:, None] * heads + head[:, None]) * HEAD_DIM + column[None, :]
        tl.store(out + place, result, mask=mask)


@triton.jit(do_not_specialize=["table_stride", "splits", "tiles"])
def attend(
    query,
    key_cache,
    value_cache,
    out,
    partial_values,
    partial_peaks,
    partial_weights,
    sinks,
    tables,
    tile_sequences,
    tile_firsts,
    tile_ends,
    last_seen,
    query_starts,
    query_lens,
    seq_lens,
    scale,
    cap,
    key_scales,
    value_scales,
    window,
    table_stride,
    query_stride,
    head_stride,
    slot_stride,
    splits,
    tiles,
    TILES: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    TURNING: tl.constexpr,
    TURNING_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTIAL_ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPANS: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PAIRED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """PARTIAL_ROWS is the number of rows of a tile that may be real, if programs compute single
    splits, and says how many queries a tile has; 0 if a program has all splits of a tile. HEAD_DIM
    is the size of a value. If TURNING isn't 0, a key is so many numbers and then its value, and
    values aren't read anywhere else. With SPANS a row sees keys up to the one that `last_seen` has
    for it, and a tile those before its place in `tile_ends`; otherwise a row sees none after its
    own.

    The (tile, split) pairs of single splits are listed one tile after the other, and each program
    of the grid's axis 0 takes every so manieth of them. `splits`: most that a tile has."""
    await_earlier(EARLY)
    kv_head = tl.program_id(1)
    if PARTIAL_ROWS > 0:
        of_tiles = splits_of_tiles(
            tile_sequences, tile_firsts, tile_ends, query_lens, seq_lens, window, tiles, TILES,
            PARTIAL_ROWS // GROUP, SPLIT, WINDOW, CHUNKS, SPANS,
        )  # fmt: skip
        ends = tl.cumsum(of_tiles, 0)
        for item in range(tl.program_id(0), tl.sum(of_tiles, 0), tl.num_programs(0)):
            tile = tl.sum((ends <= item).to(tl.int32), 0)
            nth = item - tl.sum(tl.where(ends <= item, of_tiles, 0), 0)
            _attend_tile(
                tile, nth, kv_head, query, key_cache, value_cache, out,
                partial_values, partial_peaks, partial_weights, sinks, tables,
                tile_sequences, tile_firsts, tile_ends, last_seen, query_starts,
                query_lens, seq_lens, scale, cap, key_scales, value_scales, window, table_stride,
                query_stride, head_stride, slot_stride, splits, GROUP, HEAD_DIM,
                DIM_BLOCK, TURNING, TURNING_BLOCK, BLOCK_SIZE, ROWS, KEYS, SPLIT,
                PARTIAL_ROWS, WINDOW, CHUNKS, SPANS, SINKS, SCALED, SOFT_CAP, PAIRED,
            )  # fmt: skip
    else:
        _attend_tile(
            tl.program_id(0), 0, kv_head, query, key_cache, value_cache, out,
            partial_values, partial_peaks, partial_weights, sinks, tables,
            tile_sequences, tile_firsts, tile_ends, last_seen, query_starts, query_lens,
            seq_lens, scale, cap, key_scales, value_scales, window, table_stride, query_stride,
            head_stride, slot_stride, splits, GROUP, HEAD_DIM, DIM_BLOCK, TURNING,
            TURNING_BLOCK, BLOCK_SIZE, ROWS, KEYS, SPLIT, PARTIAL_ROWS, WINDOW, CHUNKS,
            SPANS, SINKS, SCALED, SOFT_CAP, PAIRED,
        )  # fmt: skip
