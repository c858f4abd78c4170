"""A page of numbers that engine, client and the measuring process share."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_TURNS = 200_000
_TIMES = 8


class _Number:
    """One place of the page, as `kind` has it."""

    def __init__(self, place: int, kind: Callable[[float], Any]) -> None:
        self._place, self._kind = place, kind

    def __get__(self, board: Board, owner: type[Board]) -> Any:
        return self._kind(board.numbers[self._place])

    def __set__(self, board: Board, value: float) -> None:
        board.numbers[self._place] = value


class Board:
    """Float64 numbers in a file that every process maps. Each has one writer."""

    submitted = _Number(0, int)  # requests that the engine holds
    go = _Number(1, bool)  # whether the engine may begin
    received = _Number(2, int)  # tokens that the client has read
    ended = _Number(3, bool)  # whether the client has read all

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * (_TIMES + MAX_TURNS)))
        self._file = path.open("r+b")
        self.numbers = memoryview(mmap.mmap(self._file.fileno(), 0)).cast("d")

    @property
    def times(self) -> memoryview:
        """Time at which the engine sent each turn, on the machine's monotonic clock, which all
        processes share."""
        return self.numbers[_TIMES:]
