"""A page of numbers that engine, client and the measuring process share."""

from __future__ import annotations

import mmap
from pathlib import Path

MAX_TURNS = 200_000

_SUBMITTED, _GO, _RECEIVED, _ENDED = range(4)
_TIMES = 8


class Board:
    """Float64 numbers in a file that every process maps. Each has one writer.

    submitted: requests that the engine holds.  go: set when it may begin.  received: tokens that
    the client has read.  ended: set when it has read all.  sent(turn): when the engine sent it, on
    the machine's monotonic clock, which all processes share.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * (_TIMES + MAX_TURNS)))
        self._file = path.open("r+b")
        self._numbers = memoryview(mmap.mmap(self._file.fileno(), 0)).cast("d")

    @property
    def submitted(self) -> int:
        return int(self._numbers[_SUBMITTED])

    @submitted.setter
    def submitted(self, count: int) -> None:
        self._numbers[_SUBMITTED] = count

    @property
    def go(self) -> bool:
        return bool(self._numbers[_GO])

    @go.setter
    def go(self, value: bool) -> None:
        self._numbers[_GO] = value

    @property
    def received(self) -> int:
        return int(self._numbers[_RECEIVED])

    @received.setter
    def received(self, count: int) -> None:
        self._numbers[_RECEIVED] = count

    @property
    def ended(self) -> bool:
        return bool(self._numbers[_ENDED])

    @ended.setter
    def ended(self, value: bool) -> None:
        self._numbers[_ENDED] = value

    @property
    def times(self) -> memoryview:
        """When each turn was sent."""
        return self._numbers[_TIMES:]
