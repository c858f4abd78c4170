"""Whose item is prepared next, where tenants want more than there are processes for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from penstock.errors import Limited, Overloaded

MAX_WAITING = 16_384
"""Items that wait in a front end."""
MAX_OF_TENANT = 2_048
"""Items of one tenant that wait in a front end."""
RETRY_AFTER = 1.0
"""Seconds."""


class Turns:
    """At most `most` items are under way; of those that wait, each tenant's first goes in turn, so
    that what one of them sends makes another one wait for an item of its, not for all of them.

    Use `take` and, for each, `give`.  Belongs to one event loop.
    """

    def __init__(
        self, most: int, *, max_waiting: int = MAX_WAITING, max_of_tenant: int = MAX_OF_TENANT
    ) -> None:
        self.waiting = 0
        self._free = most
        self._max_waiting = max_waiting
        self._max_of_tenant = max_of_tenant
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """What waits, by tenant, the next one first; none is empty."""

    async def take(self, tenant: str) -> None:
        """Returns when it is the tenant's turn. Raises Limited or Overloaded where too many
        wait."""
        if self._free:
            self._free -= 1
            return
        self._check(tenant)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(tenant, turn)
            else:  # It was given, and isn't wanted any more.
                self.give()
            raise

    def give(self) -> None:
        """An item is no longer under way."""
        if not self._queues:
            self._free += 1
            return
        tenant, queue = self._queues.popitem(last=False)
        turn = queue.popleft()
        self.waiting -= 1
        if queue:
            self._queues[tenant] = queue  # Behind all others.
        if turn.cancelled():
            self.give()
        else:
            turn.set_result(None)

    def _check(self, tenant: str) -> None:
        if len(self._queues.get(tenant, ())) >= self._max_of_tenant:
            raise Limited(
                f"{self._max_of_tenant} media items of this tenant are waiting to be prepared, the "
                "most allowed",
                retry_after=RETRY_AFTER,
            )
        if self.waiting >= self._max_waiting:
            raise Overloaded(
                f"{self.waiting} media items are waiting to be prepared, the most allowed",
                retry_after=RETRY_AFTER,
            )

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(tenant, deque())
        if turn in queue:
            queue.remove(turn)
            self.waiting -= 1
            if not queue:
                del self._queues[tenant]
