"""Causal attention of a ragged batch over a paged KV cache.

Any mix of sequences is computed in one call: a decode has one query, a prefill chunk has many. The
work is divided into pairs of

- a query tile: `QUERY_ROWS // group` consecutive queries of a sequence, times the `group` query
  heads that share a KV head, padded where the chunk has fewer queries left; and
- a key split: KEY_SPLIT consecutive token positions, starting at a multiple of KEY_SPLIT.

Each pair gives a partial softmax. A tile's partials are combined in the order of their positions by
the online-softmax recurrence (Milakov and Gimelshein, 2018; Dao et al., 2022). Every pair has the
same shape, whatever the batch, the chunk or the block size, and K and V are always read from the
cache as stored; so a query's bits depend on its sequence alone. A split that a query doesn't see
multiplies its sums by exactly 1 and adds exactly 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock_kernels.reference.activations import soft_cap as capped
from penstock_kernels.reference.batched import batched_product
from penstock_kernels.reference.kv_cache import KVRows

if TYPE_CHECKING:
    from torch import Tensor

KEY_SPLIT = 64
"""Token positions per key split. Results depend on it. 32 is slow at long contexts (43 ms for one
decode at 1,024 tokens, against 27), 128 at short ones (9.1 ms at 40 tokens, against 7.2)."""

QUERY_ROWS = 8
"""Most rows of a query tile, unless more query heads share a KV head. Results depend on it. A
decode uses `group` rows and pays for all; a prefill reads the keys once per tile. Attention of
SmolLM2-135M (group 3), in milliseconds for its 30 layers on 1 thread: 32 decodes at 200 tokens take
98 with 4 rows, 108 with 8, 178 with 16; a prefill of 512 tokens takes 1415, 857 and 584."""

GROUP_PAIRS = 512
"""Most pairs of a group. Bounds temporary memory, and doesn't affect results."""
GATHER_BYTES = 2 << 20
"""Bytes of keys gathered at a time, about what stays in the L2 cache; more was slower. Bounds
temporary memory, and doesn't affect results."""

LANES = 16
"""Head dimensions are padded with zeros to a multiple of this: 64 bytes of float32. Otherwise the
matrices of a batch would begin at different alignments, and BLAS sums in another order for some of
them."""

_LOWEST = -1e30
"""The maximum over no keys at all. It is finite, so that differences aren't NaN."""


@dataclass(frozen=True)
class TileGroup:
    """Query tiles that are computed together, in descending order of their number of splits."""

    rows: Tensor
    """[tiles, tile_queries] int64: rows of the query tensor. Padding repeats a real row."""
    out_places: Tensor
    """[n] int64: indices into the flattened `rows`, without padding."""
    out_rows: Tensor
    """[n] int64: the output row of each of these."""
    split_tiles: list[int]
    """The number of tiles that reach each split (the first ones, by their order)."""
    pair_tiles: Tensor
    """[pairs] int64: the tile of each pair; pairs are ordered by split."""
    slots: Tensor
    """[pairs, KEY_SPLIT] int64: the cache slot of each key."""
    positions: Tensor
    """[pairs, tile_queries, 1, 1] int64: the position of each query."""
    keys: Tensor
    """[pairs, 1, 1, KEY_SPLIT] int64: the position of each key."""
    later: Tensor
    """[pairs, tile_queries, 1, KEY_SPLIT] bool: keys after the last one that the query sees."""
    _masks: dict[tuple[int | None, int | None], Tensor] = field(default_factory=dict)

    def hidden(self, window: int | None, chunk: int | None = None) -> Tensor:
        """Returns which keys each query must not see, as `later`. A query sees the last `window`
        keys up to its own, and those of its chunk of positions; None: all of them. Made once for
        all layers of a step."""
        key = (window, chunk)
        if key not in self._masks:
            hidden = self.later
            if window is not None:
                hidden = hidden | (self.keys <= self.positions - window)
            if chunk is not None:
                hidden = hidden | (self.keys < self.positions // chunk * chunk)
            self._masks[key] = hidden
        return self._masks[key]

    def left_out(self, chosen: Tensor) -> Tensor:
        """Returns which keys each query doesn't choose, as `later`. chosen: [rows, positions], or
        [rows, kv_heads, positions], of which is returned what `later` is for each KV head."""
        rows = self.rows[self.pair_tiles][:, :, None]
        if chosen.dim() == 2:
            return ~chosen[rows, self.keys[:, 0]][:, :, None]
        by_head = chosen.movedim(1, 0)
        return ~by_head[:, rows, self.keys[:, 0]][:, :, :, None]


@dataclass(frozen=True)
class AttentionPlan:
    """What a step's attention needs in addition to the tensors; the same for every layer."""

    groups: list[TileGroup]


def tile_queries(group: int) -> int:
    """Queries per tile where `group` query heads share a KV head."""
    return max(1, QUERY_ROWS // group)


def plan_attention(
    block_tables: Sequence[np.ndarray],
    query_lens: np.ndarray,
    seq_lens: np.ndarray,
    *,
    block_size: int,
    zero_slot: int,
    group: int,
    firsts: Sequence[int] | None = None,
    last_seen: np.ndarray | None = None,
    between: np.ndarray | None = None,
) -> AttentionPlan:
    """Lays out a step.

    `block_tables`: for each sequence its KV blocks in token order, enough for seq_lens tokens.
    `query_lens`: [seqs], queries per sequence, at least 1; they are its last tokens.
    `seq_lens`: [seqs], tokens whose K and V are in the cache, including the queries.
    `zero_slot`: a slot that contains zeros, read where a split reaches past the sequence.
    `group`: query heads per KV head.
    `firsts`: for each sequence the first token that a query of it sees, before which no block is
    read; None: the first of all.
    `last_seen`: [queries] the last position that each query sees, below its sequence's length; -1:
    it sees none; None: its own.
    `between`: [queries] bool, those that see no key after themselves, whatever `last_seen` says,
    and whose keys none before them sees; None: there are none.
    """
    begins = [0] * len(block_tables) if firsts is None else firsts
    slots = np.concatenate(_slots_by_split(block_tables, seq_lens, begins, block_size, zero_slot))
    seq_splits = -(-seq_lens // KEY_SPLIT)
    first_slots = np.cumsum(seq_splits) - seq_splits
    per_tile = tile_queries(group)
    tiles = -(-query_lens // per_tile)
    seq = np.repeat(np.arange(len(query_lens)), tiles)
    first_tile = np.repeat(np.cumsum(tiles) - tiles, tiles)
    first_row = (np.cumsum(query_lens) - query_lens)[seq]
    within = (np.arange(len(seq)) - first_tile)[:, None] * per_tile + np.arange(per_tile)
    real = within < query_lens[seq][:, None]
    within = np.minimum(within, query_lens[seq][:, None] - 1)
    positions = (seq_lens - query_lens)[seq][:, None] + within
    rows = first_row[:, None] + within
    last_keys = positions if last_seen is None else last_seen[rows]
    splits = np.maximum(last_keys.max(1), 0) // KEY_SPLIT + 1
    order = np.argsort(-splits, kind="stable")
    groups = []
    for part in _by_pairs(order, splits):
        groups.append(
            _group(
                first_slots[seq[part]],
                rows[part],
                real[part],
                positions[part],
                last_keys[part],
                splits[part],
                slots,
            )
        )
        if between is not None:
            _hide(groups[-1], between, (seq_lens - np.cumsum(query_lens))[seq[part]])
    return AttentionPlan(groups)


def _hide(group: TileGroup, between: np.ndarray, offsets: np.ndarray) -> None:
    """Hides keys after a query where one of both is `between`. offsets: [tiles], from the row of
    a query to its position."""
    flags = torch.from_numpy(between)
    own = flags[group.rows[group.pair_tiles]][:, :, None, None]
    rows = group.keys - torch.from_numpy(offsets)[group.pair_tiles][:, None, None, None]
    behind = group.keys > group.positions
    # Of keys after a query, all that it sees are queries of the step.
    theirs = flags[rows.clamp(0, len(between) - 1)]
    group.later.logical_or_(behind & (own | theirs))


def _slots_by_split(
    block_tables: Sequence[np.ndarray],
    seq_lens: np.ndarray,
    firsts: Sequence[int],
    block_size: int,
    zero_slot: int,
) -> list[np.ndarray]:
    """Returns [splits, KEY_SPLIT] for each sequence: the slot of each token position."""
    slots = []
    for table, length, first in zip(block_tables, seq_lens.tolist(), firsts, strict=True):
        position = np.arange(length)
        padded = np.full(-(-length // KEY_SPLIT) * KEY_SPLIT, zero_slot, dtype=np.int64)
        padded[:length] = table[position // block_size] * block_size + position % block_size
        padded[:first] = zero_slot
        slots.append(padded.reshape(-1, KEY_SPLIT))
    return slots


def _by_pairs(order: np.ndarray, splits: np.ndarray) -> list[np.ndarray]:
    """Cuts `order` into runs of at most GROUP_PAIRS pairs (a single tile may have more)."""
    parts, start, pairs = [], 0, 0
    for end, tile in enumerate(order):
        if end > start and pairs + splits[tile] > GROUP_PAIRS:
            parts.append(order[start:end])
            start, pairs = end, 0
        pairs += int(splits[tile])
    parts.append(order[start:])
    return parts


def _group(
    first_slots: np.ndarray,
    rows: np.ndarray,
    real: np.ndarray,
    positions: np.ndarray,
    last_keys: np.ndarray,
    splits: np.ndarray,
    slots: np.ndarray,
) -> TileGroup:
    """Makes a group of tiles. All arguments are per tile, except `slots`, [splits, KEY_SPLIT], in
    which a tile's splits begin at its first_slots."""
    split_tiles = [int((splits > split).sum()) for split in range(int(splits[0]))]
    pair_tiles = np.concatenate([np.arange(count) for count in split_tiles])
    pair_splits = np.repeat(np.arange(len(split_tiles)), split_tiles)
    keys = pair_splits[:, None] * KEY_SPLIT + np.arange(KEY_SPLIT)
    queries = positions[pair_tiles][:, :, None]
    later = keys[:, None, :] > last_keys[pair_tiles][:, :, None]
    pair_slots = slots[first_slots[pair_tiles] + pair_splits]
    return TileGroup(
        rows=torch.from_numpy(rows),
        out_places=torch.from_numpy(real.reshape(-1).nonzero()[0]),
        out_rows=torch.from_numpy(rows[real]),
        split_tiles=split_tiles,
        pair_tiles=torch.from_numpy(pair_tiles),
        slots=torch.from_numpy(pair_slots),
        positions=torch.from_numpy(queries[..., None]),
        keys=torch.from_numpy(keys[:, None, None, :]),
        later=torch.from_numpy(later[:, :, None, :]),
    )


def paged_attention(
    query: Tensor,
    key_cache: KVRows,
    value_cache: KVRows,
    plan: AttentionPlan,
    scale: float,
    *,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    chosen: Tensor | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v for every query over its sequence's cache, in float32.

    `window`: a query sees its own key and the window - 1 before it; None for all before it.
    `chunk`: a query sees no key before the last multiple of it up to its own position.
    `soft_cap`: scores x become soft_cap * tanh(x / soft_cap).
    `sinks`: [heads] float32, a score of each head that takes part in the softmax without a value.

    `chosen`: [rows, positions] bool, or [rows, kv_heads, positions], which keys each query sees of
    those; None for all.

    `query`: [rows, heads, head_dim]; rows beyond the plan's are padding.
    `key_cache`, `value_cache`: [kv_heads, slots, head_dim]; heads is a multiple of kv_heads, and
    query head h reads KV head h // (heads // kv_heads). Values may have another size than keys.

    Returns [rows, heads, size of a value] in the query's dtype; padding rows are zero.
    """
    size = value_cache.shape[2]
    out = query.new_zeros(*query.shape[:2], size)
    for group in plan.groups:
        tiles = query_tiles(query, group, key_cache.shape[0], scale)
        hidden = group.hidden(window, chunk)
        if chosen is not None:
            hidden = hidden | group.left_out(chosen)
        found = partials(tiles, key_cache, value_cache, group, hidden, soft_cap)
        result = _combine(*found, group, _sinks_by_row(sinks, tiles))
        flat = rows_of(result, query.shape[1])
        out[group.out_rows] = flat[group.out_places, :, :size].to(query.dtype)
    return out


def query_tiles(query: Tensor, group: TileGroup, kv_heads: int, scale: float) -> Tensor:
    """Returns a plan's queries, [kv_heads, tiles, tile rows, padded head_dim], float32, scaled.

    A row is a (query, head) pair.
    """
    tiles = _padded(query[group.rows].float() * scale)
    count, queries, heads, dim = tiles.shape
    tiles = tiles.view(count, queries, kv_heads, heads // kv_heads, dim)
    return tiles.permute(2, 0, 1, 3, 4).reshape(kv_heads, count, -1, dim)


def rows_of(result: Tensor, heads: int) -> Tensor:
    """The inverse of query_tiles: [tiles * tile_queries, heads, padded head_dim]."""
    kv_heads, count, _, dim = result.shape
    split = result.view(kv_heads, count, -1, heads // kv_heads, dim)
    return split.permute(1, 2, 0, 3, 4).reshape(-1, heads, dim)


def partials(
    tiles: Tensor,
    key_cache: KVRows,
    value_cache: KVRows,
    group: TileGroup,
    hidden: Tensor,
    soft_cap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the row maxima and sums of each pair, [kv_heads, pairs, rows], and its weighted
    values, [.., dim]."""
    parts = []
    at_once = max(1, GATHER_BYTES // (key_cache.shape[0] * KEY_SPLIT * key_cache.shape[2] * 4))
    for start in range(0, group.slots.shape[0], at_once):
        some = slice(start, start + at_once)
        query = tiles.index_select(1, group.pair_tiles[some])
        key = gather_keys(key_cache, group.slots[some])
        value = gather_keys(value_cache, group.slots[some])
        parts.append(_pairs(query, key, value, hidden[..., some, :, :, :], soft_cap))
    if len(parts) == 1:
        return parts[0]
    maxima, sums, values = zip(*parts, strict=True)
    return torch.cat(maxima, 1), torch.cat(sums, 1), torch.cat(values, 1)


def gather_keys(cache: KVRows, slots: Tensor) -> Tensor:
    """Returns what a cache has in slots, [pairs, KEY_SPLIT]: [kv_heads, pairs, KEY_SPLIT, padded
    head_dim], float32."""
    kv_heads, _, dim = cache.shape
    rows = cache.index_select(1, slots.reshape(-1)).float().view(kv_heads, -1, KEY_SPLIT, dim)
    return _padded(rows)


def _padded(x: Tensor) -> Tensor:
    """Returns x with its last dimension padded to a multiple of LANES."""
    missing = -x.shape[-1] % LANES
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


def _pairs(
    query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, soft_cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    kv_heads, pairs, rows, _ = query.shape
    scores = batched_product(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2))
    if soft_cap is not None:
        scores = capped(scores, soft_cap)
    by_query = scores.view(kv_heads, pairs, hidden.shape[-3], -1, KEY_SPLIT)
    by_query.masked_fill_(hidden, float("-inf"))
    maxima = scores.amax(-1).clamp_(min=_LOWEST)
    weights = scores.sub_(maxima[..., None]).exp_()
    sums = weights.sum(-1)
    values = batched_product(weights, value.flatten(0, 1))
    shape = (kv_heads, pairs, rows)
    return maxima.view(shape), sums.view(shape), values.view(*shape, value.shape[3])


def _sinks_by_row(sinks: Tensor | None, tiles: Tensor) -> Tensor | None:
    """Returns the sink of each row of a tile, [kv_heads, 1, rows]."""
    if sinks is None:
        return None
    kv_heads, rows = tiles.shape[0], tiles.shape[2]
    by_head = sinks.float().view(kv_heads, -1)
    return by_head.repeat(1, rows // by_head.shape[1])[:, None]


def _combine(
    maxima: Tensor, sums: Tensor, values: Tensor, group: TileGroup, sinks: Tensor | None
) -> Tensor:
    """Combines the partials of each tile, split by split, and the sinks last. Returns [kv_heads,
    tiles, rows, dim]."""
    top, total, mixed = folded(maxima, sums, values, group)
    if sinks is not None:
        both = torch.maximum(top, sinks)
        keep = torch.exp(top - both)
        total, mixed = total * keep + torch.exp(sinks - both), mixed * keep[..., None]
    return mixed / total[..., None]


def folded(
    maxima: Tensor, sums: Tensor, values: Tensor, group: TileGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """Combines the partials of each tile, split by split. Returns rows' maxima and sums, [kv_heads,
    tiles, rows], and their weighted values, [.., dim]. May overwrite the partials."""
    tiles = group.split_tiles[0]
    top, total, mixed = maxima[:, :tiles], sums[:, :tiles], values[:, :tiles]
    start = tiles
    for count in group.split_tiles[1:]:
        part = slice(start, start + count)
        old, new = top[:, :count], maxima[:, part]
        both = torch.maximum(old, new)
        keep, add = torch.exp(old - both), torch.exp(new - both)
        total[:, :count] = total[:, :count] * keep + sums[:, part] * add
        mixed[:, :count] = mixed[:, :count] * keep[..., None] + values[:, part] * add[..., None]
        top[:, :count] = both
        start += count
    return top, total, mixed
