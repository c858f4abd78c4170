"""Places for expensive work that tenants share: they are given to tenants in turn."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Rule = Callable[[int, int], bool]
"""Whether a tenant may have one more place, by how many it has and how many are free."""


def any_free(had: int, free: int) -> bool:
    """Allows any free place: one tenant may have them all."""
    return free > 0


def one_each(had: int, free: int) -> bool:
    """One for each tenant."""
    return free > 0 and not had


def fewer_than_free(had: int, free: int) -> bool:
    """One more while a tenant has fewer than are free (dynamic thresholds: Choudhury, Hahne, 1998):
    none gets all of them, and a tenant without any finds one."""
    return had < free


class TenantPlaces:
    """Belongs to one event loop. A tenant's longest waiting caller gets its next place; then its
    others wait for those of other tenants."""

    def __init__(self, most: int, may: Rule) -> None:
        self.waiting = 0
        """How many wait, of all tenants."""
        self._free = most
        self._may_have = may
        self._had: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Futures by tenant, in the order of their turns. One that is done waits no longer."""

    def waiting_of(self, name: str) -> int:
        """How many of the tenant's wait."""
        return len(self._waiting.get(name, ()))

    def take(self, name: str) -> bool:
        """Whether the tenant gets a place now. Waiting callers come first."""
        if name in self._waiting or not self._may(name):
            return False
        self._give(name)
        return True

    async def enter(self, name: str, patience: float | None = None) -> None:
        """Takes a place as soon as there is one. Raises TimeoutError after so many seconds."""
        if self.take(name):
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append(place)
        self.waiting += 1
        try:
            async with asyncio.timeout(patience):
                await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.leave(name)
            else:
                self._forget(name, place)
            raise

    def leave(self, name: str) -> None:
        """Gives one of the tenant's places back."""
        self._free += 1
        self._had[name] -= 1
        if not self._had[name]:
            del self._had[name]
        for other in list(self._waiting):
            if not self._free:
                return
            if self._may(other):
                self._call(other)

    @asynccontextmanager
    async def place(self, name: str) -> AsyncIterator[None]:
        """Waits for one of the tenant's places, and has it meanwhile."""
        await self.enter(name)
        try:
            yield
        finally:
            self.leave(name)

    def _may(self, name: str) -> bool:
        return self._may_have(self._had[name], self._free)

    def _give(self, name: str) -> None:
        self._free -= 1
        self._had[name] += 1

    def _call(self, name: str) -> None:
        places = self._waiting.pop(name)
        while places:
            place = places.popleft()
            self.waiting -= 1
            if not place.done():
                self._give(name)
                place.set_result(None)
                break
        if places:
            self._waiting[name] = places

    def _forget(self, name: str, place: asyncio.Future[None]) -> None:
        places = self._waiting.get(name)
        if places is not None and place in places:
            places.remove(place)
            self.waiting -= 1
            if not places:
                del self._waiting[name]


class TenantPlace:
    """A place that a tenant may have, and give back while its work waits for something else."""

    def __init__(self, places: TenantPlaces, name: str) -> None:
        self._places = places
        self._name = name
        self._mine = False
        self._entering = asyncio.Lock()

    def take(self) -> bool:
        """Whether it is there, or can be had now."""
        self._mine = self._mine or self._places.take(self._name)
        return self._mine

    async def enter(self, patience: float | None = None) -> None:
        """Waits for it, if it isn't there. Raises TimeoutError after so many seconds."""
        async with self._entering:
            if not self._mine:
                await self._places.enter(self._name, patience)
                self._mine = True

    def leave(self) -> None:
        """Gives it back. Idempotent."""
        if self._mine:
            self._mine = False
            self._places.leave(self._name)
