"""Turns of tenants at what costs much."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_A_TIME = 2
"""Pieces of work at a time, unless it is said otherwise."""

Waiting = OrderedDict[str, deque[asyncio.Future[None]]]
"""Who waits, by tenant, in the order of their turns. A future that is done waits no longer."""


def still_waiting(waiting: Waiting) -> int:
    """Returns how many wait, of all tenants."""
    return sum(not place.done() for places in waiting.values() for place in places)


class TenantTurns:
    """Turns at what costs much, in one event loop: few at once, one for each tenant, and tenants
    one after the other."""

    def __init__(self, at_a_time: int = AT_A_TIME) -> None:
        self._free = at_a_time
        self._busy: set[str] = set()
        self._waiting: Waiting = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait for their tenants' turns."""
        return still_waiting(self._waiting)

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Waits for the tenant's turn."""
        await self.enter(name)
        try:
            yield
        finally:
            self.leave(name)

    async def enter(self, name: str) -> None:
        """Waits for the tenant's turn, which lasts until `leave`."""
        if self._free and name not in self._busy and name not in self._waiting:
            self._take(name)
        else:
            await self._wait(name)

    async def _wait(self, name: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave(name)
            raise

    def _take(self, name: str) -> None:
        self._free -= 1
        self._busy.add(name)

    def leave(self, name: str) -> None:
        """Ends the tenant's turn."""
        self._free += 1
        self._busy.discard(name)
        for other in list(self._waiting):
            if not self._free:
                return
            if other not in self._busy:
                self._call(other)

    def _call(self, name: str) -> None:
        """The turn goes to the tenant's next one; its others wait for those of other tenants."""
        places = self._waiting.pop(name)
        while places:
            place = places.popleft()
            if not place.done():
                self._take(name)
                place.set_result(None)
                break
        if places:
            self._waiting[name] = places


class TenantTurn:
    """A tenant's turn, which ends while its work waits for something else."""

    def __init__(self, turns: TenantTurns, name: str) -> None:
        self._turns = turns
        self._name = name
        self._mine = False
        self._entering = asyncio.Lock()

    async def enter(self) -> None:
        """Waits for the turn, if it isn't there. Idempotent."""
        async with self._entering:
            if not self._mine:
                await self._turns.enter(self._name)
                self._mine = True

    def leave(self) -> None:
        """Ends it. Idempotent."""
        if self._mine:
            self._mine = False
            self._turns.leave(self._name)
