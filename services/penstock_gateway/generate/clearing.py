"""What is not urgent, a little in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 8
"""Ended streams that are cleared away in one turn: about a millisecond."""


class Clearing:
    """Where hundreds of streams end with the same step, clearing all of them away at once would
    keep the next step's tokens waiting. They come here once their clients have everything, and
    go on some at a time, in their order. For tasks of one event loop."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._gone = 0
        """That went on in this turn."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._due = False

    async def wait(self) -> None:
        """Returns at once where few have come in this turn, else in a later one."""
        loop = asyncio.get_running_loop()
        if not self._due:
            self._due = True
            loop.call_soon(self._next, loop)
        if self._gone < self._at_once:
            self._gone += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._gone = 0
        while self._waiting and self._gone < self._at_once:
            turn = self._waiting.popleft()
            if not turn.done():  # Else its task was cancelled.
                turn.set_result(None)
                self._gone += 1
        self._due = self._gone > 0
        if self._due:
            loop.call_soon(self._next, loop)
