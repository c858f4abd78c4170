"""The block tables of all slots in one array for each KV group, so that a step's tables are taken
from it at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np


class BlockTables:
    """Slots are numbered from 0 to slots - 1. Rows grow as blocks are added. Nothing is ever
    cleared, because a reader knows how many blocks of a row are the sequence's own, and which of
    them its layers see."""

    def __init__(self, slots: int, groups: int = 1) -> None:
        self._rows = np.zeros((groups, slots, 1), np.int32)

    def put(self, slot: int, first: int, blocks: Sequence[int]) -> None:
        """Sets the blocks of the slot from index `first` on: equally many for each group, one
        group's after another."""
        groups, slots, columns = self._rows.shape
        end = first + len(blocks) // groups
        if end > columns:
            wider = np.zeros((groups, slots, 1 << (end - 1).bit_length()), np.int32)
            wider[:, :, :columns] = self._rows
            self._rows = wider
        self._rows[:, slot, first:end] = np.reshape(blocks, (groups, end - first))

    def of(self, slots: Sequence[int], widths: Sequence[int], group: int = 0) -> StepTables:
        """Returns the tables of a step, for one group. They must be read before the next `put`.
        `widths` has the number of blocks of each slot."""
        return StepTables(self._rows[group], slots, widths)


class StepTables(Sequence[np.ndarray]):
    """The block tables of one step. Each is [blocks] int64, with the contents at the time of
    access."""

    def __init__(self, rows: np.ndarray, slots: Sequence[int], widths: Sequence[int]) -> None:
        self._rows = rows
        self._slots = slots
        self._widths = widths

    def __len__(self) -> int:
        return len(self._slots)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return self._rows[self._slots[index], : self._widths[index]].astype(np.int64)

    def pieces(self) -> tuple[list[np.ndarray], list[int]]:
        """Returns the contents of each table, [blocks] int32, as they are now and may change at the
        next `put`; and their lengths."""
        rows, widths = self._rows, list(self._widths)
        return [rows[s, :w] for s, w in zip(self._slots, widths, strict=True)], widths

    def write(self, out: np.ndarray) -> None:
        """Writes all tables to `out`, [sequences, columns] int32. What is past a table's end is
        undefined."""
        columns = min(out.shape[1], self._rows.shape[1])
        out[:, :columns] = self._rows[list(self._slots), :columns]


def joined_tables(groups: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, list[int]]:
    """Returns all tables of a step in one array, group by group, and the length of each. If there
    is only one table, the array may be that of BlockTables, and changes with the next `put`."""
    pieces: list[np.ndarray] = []
    widths: list[int] = []
    for tables in groups:
        if isinstance(tables, StepTables):
            own, lengths = tables.pieces()
        else:
            own, lengths = list(tables), [len(table) for table in tables]
        pieces += own
        widths += lengths
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces), widths


def write_tables(tables: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Writes tables of any kind to `out`, as StepTables.write does."""
    if isinstance(tables, StepTables):
        tables.write(out)
        return
    for row, table in zip(out, tables, strict=True):
        held = table[: len(row)]
        row[: len(held)] = held
