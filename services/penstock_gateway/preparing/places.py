"""Places that tenants share: each may have as many as it leaves free."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque

from penstock_gateway.preparing.turns import Waiting, still_waiting


class TenantPlaces:
    """So many places. A tenant gets another one while it has fewer than are free (dynamic
    thresholds: Choudhury, Hahne, 1998): none gets all of them, and who has none finds one."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._had: Counter[str] = Counter()
        self._waiting: Waiting = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return still_waiting(self._waiting)

    def take(self, name: str) -> bool:
        """Whether the tenant gets a place now. Nobody passes those that wait."""
        if name in self._waiting or not self._may(name):
            return False
        self._give(name)
        return True

    async def wait(self, name: str, patience: float) -> None:
        """Takes a place as soon as there is one. Raises TimeoutError."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append(place)
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
            if self._may(other):
                self._call(other)

    def _may(self, name: str) -> bool:
        return self._had[name] < self._free

    def _give(self, name: str) -> None:
        self._free -= 1
        self._had[name] += 1

    def _call(self, name: str) -> None:
        """The tenant's others wait for those of other tenants."""
        places = self._waiting.pop(name)
        while places:
            place = places.popleft()
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
            if not places:
                del self._waiting[name]


class TenantPlace:
    """A place that a tenant may have."""

    def __init__(self, places: TenantPlaces, name: str) -> None:
        self._places = places
        self._name = name
        self._mine = False

    def take(self) -> bool:
        """Whether it is there, or can be had now."""
        self._mine = self._mine or self._places.take(self._name)
        return self._mine

    async def wait(self, patience: float) -> None:
        """Takes it as soon as it can be had. Raises TimeoutError after so many seconds."""
        await self._places.wait(self._name, patience)
        self._mine = True

    def leave(self) -> None:
        """Gives it back. Idempotent."""
        if self._mine:
            self._mine = False
            self._places.leave(self._name)
