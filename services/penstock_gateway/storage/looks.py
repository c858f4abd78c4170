"""When a process looks for work that others leave in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from penstock_gateway.storage.database import Database

LOOK_EVERY = 0.25
"""Seconds between questions whether anything has changed, which cost next to nothing, and between
looks for room."""
LONGEST = 2.0
"""Seconds after which a process looks all the same: a hold may have ended, or a time may have come,
neither of which changes the database. What they bring is found up to so many seconds late."""
SLOWEST = 1.0
"""Seconds between looks that find nothing where the database doesn't say whether it has changed."""
SLOWER = 1.2
"""Each of those comes so many times later than the one before."""


class WorkLooks:
    """When one process looks for one kind of work."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pause = LOOK_EVERY

    async def keep_taking(
        self, take_one: Callable[[], Awaitable[bool]], is_full: Callable[[], bool]
    ) -> NoReturn:
        """Takes work until it is cancelled. take_one: returns whether there was any.  is_full:
        whether there is no room for more."""
        while True:
            if is_full():
                await asyncio.sleep(LOOK_EVERY)
                continue
            begun = await self.begin()
            if await take_one():
                self.found()
            else:
                await self.wait(begun)

    async def begin(self) -> int | None:
        """To be called before each look. Returns what `wait` wants."""
        return await self._database.version()

    def found(self) -> None:
        """Notes that there was work: more may follow."""
        self._pause = LOOK_EVERY

    async def wait(self, begun: int | None) -> None:
        """Returns when another look may find something, after one that has found nothing: soon
        after a change, and LONGEST seconds after the look where there was none."""
        if begun is None:
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * SLOWER, SLOWEST)
            return
        clock = asyncio.get_running_loop().time
        end = clock() + LONGEST
        while (left := end - clock()) > 0:
            await asyncio.sleep(min(LOOK_EVERY, left))
            if await self._database.version() != begun:
                return
