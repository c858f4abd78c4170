"""How many WebSockets a gateway has open: in all, and of each tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import Limited, Overloaded

RETRY_AFTER = 5.0
"""Seconds: whoever speaks goes on for a while."""


class Connections:
    """Counts what is open. Belongs to one event loop."""

    def __init__(self, most: int, most_of_tenant: int) -> None:
        self.most = most
        self.most_of_tenant = most_of_tenant
        self.by_tenant: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """Of all tenants."""
        return self.by_tenant.total()

    @contextmanager
    def one(self, tenant: str) -> Iterator[None]:
        """Around a connection. Raises Limited or Overloaded where it would be one too many."""
        if self.by_tenant[tenant] >= self.most_of_tenant:
            raise Limited(
                f"this tenant has {self.most_of_tenant} WebSockets open, as many as are allowed "
                "(--max-realtime-tenant-connections)",
                retry_after=RETRY_AFTER,
            )
        if self.open >= self.most:
            raise Overloaded(
                f"{self.most} WebSockets are open, as many as are allowed "
                "(--max-realtime-connections)",
                retry_after=RETRY_AFTER,
            )
        self.by_tenant[tenant] += 1
        try:
            yield
        finally:
            self.by_tenant[tenant] -= 1
            if not self.by_tenant[tenant]:
                del self.by_tenant[tenant]
