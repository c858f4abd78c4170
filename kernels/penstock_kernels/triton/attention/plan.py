"""What a step's attention needs in addition to queries and cache: which program computes which
queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.triton.tiles import AttentionChoice, AttentionTiles


@dataclass(frozen=True)
class TileList:
    """The query tiles of one launch."""

    sequences: Tensor
    """[tiles] int32: the sequence of each tile."""
    firsts: Tensor
    """[tiles] int32: the first query of each tile within the sequence's new tokens."""
    queries: int
    """Most queries of a tile. Where it is 1, a tile has the one query, whatever follows it."""
    end: int
    """No query sees a key at or after this position. It bounds the splits that partial results have
    room for, and may be larger than necessary."""
    ends: Tensor | None = None
    """[tiles] int32: where the plan has `last_seen`, the first position that no query of the tile
    sees."""

    def part(self, chosen: slice) -> TileList:
        """Returns some of the tiles."""
        ends = None if self.ends is None else self.ends[chosen]
        return TileList(self.sequences[chosen], self.firsts[chosen], self.queries, self.end, ends)


@dataclass(frozen=True)
class DeviceAttentionPlan:
    """The sequences of one step, the same for every layer. All tensors are int32 and on the device.

    A CUDA graph keeps one plan, whose tensors are overwritten between replays.
    """

    tables: Tensor
    """[sequences, blocks]. Entries past a sequence's end are never read."""
    query_starts: Tensor
    """[sequences]: the first row of each sequence in the query tensor; for padding, a row that no
    other sequence has."""
    query_lens: Tensor
    """[sequences]: new tokens; 0 for padding."""
    seq_lens: Tensor
    """[sequences]: all tokens; 0 for padding."""
    few: TileList | None
    """Sequences with few new tokens."""
    many: TileList | None
    """Sequences with many."""
    choice: AttentionChoice
    block_size: int
    """Tokens per KV block."""
    group: int
    """Query heads that share a KV head."""
    last_seen: Tensor | None = None
    """[rows]: the last position that each row sees; None: its own."""

    def causal(self) -> DeviceAttentionPlan:
        """Returns the plan of attention in which each row sees no further than itself."""
        if self.last_seen is None:
            return self
        few, many = (
            None if tiles is None else replace(tiles, ends=None) for tiles in (self.few, self.many)
        )
        return replace(self, few=few, many=many, last_seen=None)

    def covers(self, rows: int) -> bool:
        """Returns whether each of `rows` query rows has a tile of its own, as in a decode. The
        kernels then write all of them, including padding."""
        few = self.few
        if self.many is not None or few is None:
            return False
        return few.queries == 1 and few.sequences.shape[0] == rows


def tile_queries(tiles: AttentionTiles, group: int) -> int:
    """Queries per tile where `group` query heads share a KV head. Raises ValueError if a tile can't
    hold the group."""
    if group > tiles.rows:
        raise ValueError(f"{group} query heads share a KV head; at most {tiles.rows} are supported")
    return tiles.rows // group


def plan_attention(
    block_tables: Sequence[np.ndarray],
    query_lens: np.ndarray,
    seq_lens: np.ndarray,
    *,
    block_size: int,
    group: int,
    choice: AttentionChoice,
    device: torch.device,
    last_seen: np.ndarray | None = None,
) -> DeviceAttentionPlan:
    """Lays out a step on the host, and copies it to the device without waiting.

    `block_tables`: for each sequence its KV blocks in token order, enough for seq_lens tokens.
    `query_lens`: [seqs], queries per sequence, at least 1; they are its last tokens.
    `seq_lens`: [seqs], tokens whose K and V are in the cache, including the queries.
    `group`: query heads per KV head.
    `last_seen`: [queries] the last position that each query sees, below its sequence's length and
    not before its own; None: its own.

    Unlike the reference, it needs no slot of zeros.
    """
    widest = max(len(table) for table in block_tables)
    tables = np.zeros((len(block_tables), widest), np.int32)
    for row, table in zip(tables, block_tables, strict=True):
        row[: len(table)] = table
    is_few = query_lens <= choice.split_queries
    starts = np.cumsum(query_lens) - query_lens

    def send(values: np.ndarray) -> Tensor:
        host = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32))
        return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)

    def tiles(chosen: np.ndarray, shape: AttentionTiles) -> TileList | None:
        if not chosen.any():
            return None
        per_tile = tile_queries(shape, group)
        sequences, firsts = tiles_of(chosen.nonzero()[0], query_lens, seq_lens, per_tile)
        # Either one or the maximum, because the kernels are compiled for each number.
        queries = 1 if query_lens[chosen].max() == 1 else per_tile
        ends = None
        if last_seen is not None:
            begins = starts[sequences] + firsts
            stops = begins + np.minimum(query_lens[sequences] - firsts, per_tile)
            ends = send(_most(last_seen, begins, stops) + 1)
        return TileList(send(sequences), send(firsts), queries, int(seq_lens[chosen].max()), ends)

    return DeviceAttentionPlan(
        send(tables),
        send(starts),
        send(query_lens),
        send(seq_lens),
        tiles(is_few, choice.few),
        tiles(~is_few, choice.many),
        choice,
        block_size,
        group,
        None if last_seen is None else send(last_seen),
    )


def _most(values: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the largest value of each range."""
    return np.array([values[range_].max() for range_ in map(slice, begins, ends)])


def tiles_of(
    chosen: np.ndarray, query_lens: np.ndarray, seq_lens: np.ndarray, per_tile: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (sequence, first query) of each tile of the chosen sequences, `per_tile` queries
    each. Tiles with the most keys come first, because they take longest."""
    counts = -(-query_lens[chosen] // per_tile)
    sequences = np.repeat(chosen, counts)
    within = np.arange(len(sequences)) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = within * per_tile
    order = np.argsort(-(seq_lens - query_lens)[sequences] - firsts, kind="stable")
    return sequences[order], firsts[order]
