"""The layout of a decode step, with one new token per sequence, in arrays of fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock_worker.attention.interface import BatchLayout
from penstock_worker.batch.block_tables import write_tables


def decode_shapes(sequences: int, columns: int) -> list[tuple[int, ...]]:
    """Returns the shapes of HostLayout.arrays: slots, tables, query starts and lengths, sequence
    lengths, and the tiles' sequences and firsts. `columns` is the width of the tables."""
    row = (sequences,)
    return [row, (sequences, columns), row, row, row, row, row]


def write_decode(arrays: Sequence[np.ndarray], layout: BatchLayout, block_size: int) -> None:
    """Writes a decode step into int32 arrays of decode_shapes.

    They have room for at least as many sequences as the step has, and for the longest table. All of
    them are written, except for table entries past a sequence's end, which are never read. Padding
    sequences have no query, no key and slot -1.
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
    # Sequences with the most keys first, because they take longest.
    sequences[:] = np.argsort(-lengths, kind="stable")
    firsts[:] = 0
