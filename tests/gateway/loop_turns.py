"""What is done in each turn of an event loop, by a clock that only the work moves."""

from __future__ import annotations

import asyncio
from collections import Counter

EACH = 0.0015
"""Seconds that a piece of work takes."""


class LoopTurns:
    """Counts the turns of the running loop, and the pieces of work in each of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.number = 0
        self.done: Counter[int] = Counter()
        self._task = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.number += 1

    def work(self) -> None:
        """A piece is done in this turn."""
        self.now += EACH
        self.done[self.number] += 1

    def stop(self) -> None:
        self._task.cancel()
