"""Layouts of steps in arrays of fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock_kernels.triton.attention.plan import tiles_of
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.batch.block_tables import write_tables

# The layout of a decode step, with one new token per sequence, in arrays of fixed shapes.


def decode_shapes(sequences: int, columns: int, groups: int = 1) -> list[tuple[int, ...]]:
    """Returns the shapes of HostLayout.arrays: slots, tables, query starts and lengths, sequence
    lengths, and the tiles' sequences and firsts; then slots and tables of each further KV group.
    `columns` is the width of the tables."""
    row, table = (sequences,), (sequences, columns)
    return [row, table, row, row, row, row, row, *[row, table] * (groups - 1)]


def write_decode(arrays: Sequence[np.ndarray], layout: BatchLayout, block_size: int) -> None:
    """Writes a decode step into int32 arrays of decode_shapes.

    They have room for at least as many sequences as the step has, and for the longest table. All of
    them are written, except for table entries past a sequence's end, which are never read. Padding
    sequences have no query, no key and slot -1.
    """
    slots, tables, query_starts, query_lens, lengths, sequences, firsts, *more = arrays
    count = len(layout.starts)
    block, within = np.divmod(layout.starts, block_size)
    pairs = [(slots, tables), *zip(more[::2], more[1::2], strict=True)]
    for (places, rows), group in zip(pairs, layout.tables, strict=True):
        write_tables(group, rows[:count])
        places[:count] = rows[np.arange(count), block] * block_size + within
        places[count:] = -1
    query_starts[:] = np.arange(len(query_starts))
    query_lens[:count] = 1
    query_lens[count:] = 0
    lengths[:count] = layout.starts + 1
    lengths[count:] = 0
    # Sequences with the most keys first, because they take longest.
    sequences[:] = np.argsort(-lengths, kind="stable")
    firsts[:] = 0


# The layout of a step with prompts' chunks and decodes, in arrays of fixed shapes.


@dataclass(frozen=True)
class ChunkTiles:
    """How a layout divides new tokens into tiles of queries."""

    few: int
    """A sequence with so many new tokens at most has tiles of one query, whose keys are computed
    split by split; one with more is a long chunk."""
    queries: tuple[int, ...]
    """Queries of a long chunk's tile, of each kind of heads that differ in them."""


@dataclass(frozen=True)
class MixedShape:
    """The sizes of a padded step."""

    rows: int
    sequences: int
    """Most sequences of the step."""
    columns: int
    """Width of block tables."""
    tiles: ChunkTiles
    groups: int = 1
    """KV groups."""

    @property
    def arrays(self) -> list[tuple[int, ...]]:
        """Shapes of HostLayout.arrays: slots, tables, query starts and lengths, sequence lengths;
        sequences and firsts of the tiles of few tokens, and of each kind of long chunks' tiles;
        then slots and tables of each further KV group. One more sequence than there may be is
        padding, which tiles that aren't needed belong to."""
        row, each = (self.rows,), (self.sequences + 1,)
        table = (*each, self.columns)
        few = (min(self.rows, self.sequences * self.tiles.few),)
        many = [(self._most(queries),) for queries in self.tiles.queries]
        lists = [shape for tiles in (few, *many) for shape in (tiles, tiles)]
        return [row, table, each, each, each, *lists, *[row, table] * (self.groups - 1)]

    def _most(self, queries: int) -> int:
        """Tiles of long chunks, whose last ones may have room left. At least one, since a step
        without any would be taken for one that writes all rows."""
        chunks = min(self.sequences, self.rows // (self.tiles.few + 1))
        return max(1, self.rows // queries + chunks)


def write_mixed(
    arrays: Sequence[np.ndarray], layout: BatchLayout, shape: MixedShape, block_size: int
) -> None:
    """Writes a step into int32 arrays of `shape`, which has room for it. All of them are written,
    except for table entries past a sequence's end, which are never read."""
    slots, tables, query_starts, query_lens, lengths, *rest = arrays
    split = 2 + 2 * len(shape.tiles.queries)
    lists, more = rest[:split], rest[split:]
    counts, count = layout.counts, len(layout.counts)
    sequence = np.repeat(np.arange(count), counts)
    block, within = np.divmod(layout.positions, block_size)
    pairs = [(slots, tables), *zip(more[::2], more[1::2], strict=True)]
    for (places, rows), group in zip(pairs, layout.tables, strict=True):
        write_tables(group, rows[:count])
        places[: len(block)] = rows[sequence, block] * block_size + within
        places[len(block) :] = -1
    ends = layout.starts + counts
    firsts = np.cumsum(counts) - counts
    for array, values, padding in (
        (query_starts, firsts, -1),
        (query_lens, counts, 0),
        (lengths, ends, 0),
    ):
        array[:count] = values
        array[count:] = padding
    few = counts <= shape.tiles.few
    kinds = [(1, few), *((queries, ~few) for queries in shape.tiles.queries)]
    for (queries, chosen), own, first in zip(kinds, lists[::2], lists[1::2], strict=True):
        own[:] = shape.sequences
        first[:] = 0
        listed = tiles_of(chosen.nonzero()[0], counts, ends, queries)
        for array, values in zip((own, first), listed, strict=True):
            array[: len(values)] = values
