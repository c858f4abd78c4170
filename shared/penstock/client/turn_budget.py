"""How much of a turn of the event loop one body's work may take, where many tasks share it, and how
large things are freed."""

from __future__ import annotations

import asyncio
import time
from typing import Any

TURN = 0.004
"""Seconds of the thread's time, and one piece of work more."""


class TurnBudget:
    """Tasks that share it wait, in order, for a turn of the event loop that has some of it left."""

    def __init__(self) -> None:
        self._since: float | None = None
        """The thread's time when the first of them began in this turn; None: none has."""

    async def take(self) -> None:
        """Returns at once while this turn has lasted less than TURN, else in a later one."""
        while self._spent():
            await asyncio.sleep(0)

    def _spent(self) -> bool:
        now = time.thread_time()
        if self._since is None:
            self._since = now
            asyncio.get_running_loop().call_soon(self._begin)
            return False
        return now - self._since >= TURN

    def _begin(self) -> None:
        self._since = None


async def forget(held: list[Any]) -> None:
    """Empties a list of large things in turns: freeing them takes long, too."""
    budget = TurnBudget()
    while held:
        await budget.take()
        held.pop()
