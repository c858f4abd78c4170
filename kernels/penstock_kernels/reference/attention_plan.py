"""How a step's attention is divided: which queries meet which keys, in groups of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

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
    later = group.keys > group.positions
    # Of keys after a query, all that it sees are queries of the step.
    theirs = flags[rows.clamp(0, len(between) - 1)]
    group.later.logical_or_(later & (own | theirs))


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
