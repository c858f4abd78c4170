"""The layout of a decode step, with one new token per sequence, in arrays of fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock_worker.attention.interface import BatchLayout
from penstock_worker.batch.block_tables import write_tables


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
