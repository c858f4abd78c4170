"""How many of a kind a gateway has open at once: in total, and for each tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import Limited, Overloaded

RETRY_AFTER = 5.0
"""Seconds: what takes a place here goes on for a while."""


class Places:
    """Counts what is open. Belongs to one event loop.

    what: in plural, with `open` or the like after it.  flag, tenant_flag: which say how many.
    """

    def __init__(
        self, what: str, most: int, most_of_tenant: int, flag: str, tenant_flag: str
    ) -> None:
        self._what = what
        self._most = most
        self._most_of_tenant = most_of_tenant
        self._flag = flag
        self._tenant_flag = tenant_flag
        self._by_tenant: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """How many are open, of all tenants."""
        return self._by_tenant.total()

    @contextmanager
    def one(self, tenant: str) -> Iterator[None]:
        """Around one of them. Raises Limited or Overloaded where it would be one too many."""
        if self._by_tenant[tenant] >= self._most_of_tenant:
            raise Limited(
                f"this tenant has {self._most_of_tenant} {self._what}, the maximum "
                f"({self._tenant_flag})",
                retry_after=RETRY_AFTER,
            )
        if self.open >= self._most:
            raise Overloaded(
                f"there are {self._most} {self._what}, the maximum ({self._flag})",
                retry_after=RETRY_AFTER,
            )
        self._by_tenant[tenant] += 1
        try:
            yield
        finally:
            self._by_tenant[tenant] -= 1
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]
