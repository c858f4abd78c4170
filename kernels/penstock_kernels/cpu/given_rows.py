"""What a step has of its rows besides their tokens: numbers in the place of embeddings, positions
of three numbers, and how far rows see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class GivenRows:
    """Numbers that are given for some rows of a step, in contiguous arrays."""

    rows: np.ndarray | None = None
    """[n] int32, each once: rows that have numbers of their own."""
    numbers: np.ndarray | None = None
    """[n, width] float32: what phases of kind TAKE_ROWS read of these rows."""
    turns: np.ndarray | None = None
    """[3, rows] int32: positions by which pairs turn that have axes; None: those of the tokens."""
    last_seen: np.ndarray | None = None
    """[rows] int32: the last position that each row sees; None: its own."""

    def check(
        self, positions: np.ndarray, ends: np.ndarray, width: int, angles: int | None
    ) -> None:
        """Raises ValueError for what the kernels would read or write beyond a step's memory.

        positions, ends: [rows], each row's position, and the number of its sequence's tokens after
        the step.
        width: numbers of a row that the program takes.
        angles: positions that the program's rotary tables have, by which pairs turn; None: none do.
        """
        self._check_numbers(len(positions), width)
        self._check_turns(len(positions), angles)
        seen = self.last_seen
        if seen is None:
            return
        _of_kind("last_seen", seen, np.int32, (len(positions),))
        # Of a sequence's rows, which follow one another, none sees less far than those before it.
        falls = (seen[1:] < seen[:-1]) & (positions[1:] == positions[:-1] + 1)
        if (
            (seen < positions).any()
            or (seen >= ends).any()
            or (falls & (ends[1:] == ends[:-1])).any()
        ):
            raise ValueError("last_seen has positions before a row's own, or beyond its sequence")

    def _check_numbers(self, count: int, width: int) -> None:
        rows, numbers = self.rows, self.numbers
        if rows is None or numbers is None:
            if rows is not numbers:
                raise ValueError("rows and their numbers are given together")
            return
        _of_kind("rows", rows, np.int32, (len(numbers),))
        wide = numbers.shape[-1] if numbers.shape[-1] > width else width
        _of_kind("numbers", numbers, np.float32, (len(rows), wide))
        inside = not len(rows) or (rows.min() >= 0 and rows.max() < count)
        if not inside or len(np.unique(rows)) < len(rows):
            raise ValueError(f"rows are each once, of {count}")

    def _check_turns(self, count: int, angles: int | None) -> None:
        turns = self.turns
        if turns is None:
            return
        _of_kind("turns", turns, np.int32, (3, count))
        if angles is not None and (turns.min() < 0 or turns.max() >= angles):
            raise ValueError(
                f"turns go from {turns.min()} to {turns.max()}; the tables have {angles} positions"
            )


def _of_kind(name: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        wanted = f"contiguous {np.dtype(dtype)} of shape {shape}"
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}; {wanted} is needed")


NOTHING_GIVEN = GivenRows()
