"""The layout of a decode, one new token each, written into arrays of fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock_worker.attention.interface import BatchLayout
from penstock_worker.batch.block_tables import write_tables


def decode_shapes(sequences: int, columns: int) -> list[tuple[int, ...]]:
    """Of HostLayout.arrays: slots, tables, query starts and lengths, sequence lengths, and the
    tiles' sequences and firsts.  columns: of the tables."""
    row = (sequences,)
    return [row, (sequences, columns), row, row, row, row, row]


def write_decode(arrays: Sequence[np.ndarray], layout: BatchLayout, block_size: int) -> None:
    """arrays: int32, of decode_shapes for at least as many sequences as there are, and the columns
    of the longest; all of them are written, but for tables' entries that nobody reads: those past a
    sequence's end.  A sequence of the padding has no query, no key and slot -1.
    """
    slots, tables, query_starts, query_lens, lengths, sequences, firsts = arrays
    count = len(layout.starts)
    write_tables(layout.block_tables, tables[:count])
    block, within = np.divmod(layout.starts, block_size)
    slots[:count] = tables[np.arange(count), block] * block_size + within
    slots[count:] = -1
    query_starts[:] = np.arange(len(query_starts))
    query_lens[:count] = 1
    query_lens[count:] = 0
    lengths[:count] = layout.starts + 1
    lengths[count:] = 0
    # Those that see most keys first: they take longest.
    sequences[:] = np.argsort(-lengths, kind="stable")
    firsts[:] = 0
