"""The memory that bodies take while they are read and prepared, shared by tenants."""

from __future__ import annotations

from collections import Counter

from penstock.errors import Overloaded

BODIES = 32
"""Bodies of the largest size for which a gateway has room."""
UNCOUNTED = 65_536
"""Bytes of a body that take none: as many are in the sockets' buffers."""
RETRY_AFTER = 1.0
"""Seconds after which to send a body again."""


class BodyRoom:
    """So many bytes. A tenant gets more while it has as many as it leaves free, at most (dynamic
    thresholds: Choudhury, Hahne, 1998): alone it gets a half, and one that has none finds some."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._had: Counter[str] = Counter()

    @property
    def free(self) -> int:
        """Bytes that are free."""
        return self._free

    def take(self, tenant: str, size: int) -> None:
        """Raises Overloaded where the tenant would have more than it leaves free."""
        if self._had[tenant] + size > self._free - size:
            mine = self._had[tenant]
            if not mine:
                del self._had[tenant]
            raise Overloaded(
                f"the bodies of {mine} bytes that this gateway is reading and preparing for this"
                " client leave no room for another",
                retry_after=RETRY_AFTER,
            )
        self._free -= size
        self._had[tenant] += size

    def leave(self, tenant: str, size: int) -> None:
        """Gives some of the tenant's back."""
        self._free += size
        self._had[tenant] -= size
        if not self._had[tenant]:
            del self._had[tenant]


class HeldBody:
    """One body's share of the room."""

    SCOPE = "penstock.held_body"
    """Key of the request's scope."""

    def __init__(self, room: BodyRoom, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self._size = 0
        self._taken = 0

    def grow(self, more: int) -> None:
        """So many bytes more have come. Raises Overloaded."""
        self._size += more
        due = max(0, self._size - UNCOUNTED) - self._taken
        if due > 0:
            self._room.take(self._tenant, due)
            self._taken += due

    def leave(self) -> None:
        """The body is gone, or will be with its request. Idempotent."""
        taken, self._taken = self._taken, 0
        if taken:
            self._room.leave(self._tenant, taken)
