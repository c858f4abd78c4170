"""What a simulated worker does concurrently with its steps, one thing after another."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Due = TypeVar("Due")


class OneByOne(Generic[Due]):
    """Things that a worker has begun, and when each will be done."""

    __slots__ = ("_added", "_free_at", "due")

    def __init__(self) -> None:
        self.due: deque[Due] = deque()
        """The first of them is done next."""
        self._added: list[float] = []
        self._free_at = 0.0

    def _begin(self, due: Due, seconds: float, now: float) -> None:
        """Puts a thing that takes so many seconds after those that are due."""
        self._free_at = max(now, self._free_at) + seconds
        self.due.append(due)
        self._added.append(self._free_at)

    def begun(self) -> list[float]:
        """Returns the times at which the things will be done that were begun since the last
        call."""
        found = self._added
        if found:
            self._added = []
        return found
