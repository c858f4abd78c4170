"""How many bytes of media a front end's open requests hold at a time, in all and of each tenant."""

from __future__ import annotations

from types import TracebackType

from penstock.config.settings import MediaSettings
from penstock.errors import Limited, TooLarge

RETRY_AFTER = 1.0
"""Seconds: media leave with the requests that brought them."""


class MediaBudget:
    """Counts what leases hold. Belongs to one event loop."""

    def __init__(self, settings: MediaSettings) -> None:
        self.most = settings.max_media_in_flight_mib << 20
        self.most_of_tenant = min(self.most, settings.max_media_tenant_mib << 20)
        self.most_of_request = settings.max_media_request_bytes
        self.held = 0
        self.by_tenant: dict[str, int] = {}

    def lease(self, tenant: str, deadline: float | None = None) -> MediaLease:
        """What a request of this tenant's holds; empty as yet."""
        return MediaLease(self, tenant, deadline)

    def take(self, tenant: str, size: int) -> None:
        """Raises Limited where there is no room now."""
        held = self.by_tenant.get(tenant, 0)
        if held + size > self.most_of_tenant:
            raise Limited(
                f"this tenant's requests hold {held >> 20} MiB of media, of "
                f"{self.most_of_tenant >> 20} MiB at a time (--max-media-tenant-mib)",
                retry_after=RETRY_AFTER,
            )
        if self.held + size > self.most:
            raise Limited(
                f"requests hold {self.held >> 20} MiB of media, of {self.most >> 20} MiB at a time "
                "(--max-media-in-flight-mib)",
                retry_after=RETRY_AFTER,
            )
        self.held += size
        self.by_tenant[tenant] = held + size

    def give(self, tenant: str, size: int) -> None:
        """Takes back what `take` gave."""
        self.held -= size
        left = self.by_tenant.get(tenant, 0) - size
        if left > 0:
            self.by_tenant[tenant] = left
        else:
            self.by_tenant.pop(tenant, None)


class MediaLease:
    """The bytes that one request holds, until it is closed: use it as a context manager.

    deadline: the request's, on the monotonic clock, seconds; None: none.
    """

    __slots__ = ("_budget", "_files", "_held", "_open", "deadline", "tenant")

    def __init__(self, budget: MediaBudget, tenant: str, deadline: float | None = None) -> None:
        self.tenant = tenant
        self.deadline = deadline
        self._budget = budget
        self._held = 0
        self._files = 0
        self._open = True

    def take_file(self, size: int, where: str) -> None:
        """Room for so many more bytes of files. Raises TooLarge or Limited."""
        most = self._budget.most_of_request
        if self._files + size > most:
            raise TooLarge(
                f"{where}: the request's media have more than {most} bytes in all, the most that "
                "is accepted (--max-media-request-bytes)",
                param=where,
                code="request_too_large",
            )
        self.take(size, where)
        self._files += size

    def take(self, size: int, where: str) -> None:
        """Room for so many more bytes. Raises TooLarge or Limited."""
        most = self._budget.most_of_tenant
        if self._held + size > most:
            raise TooLarge(
                f"{where}: the request's media take more than {most >> 20} MiB once they are "
                "prepared, more than a tenant may hold (--max-media-tenant-mib)",
                param=where,
                code="request_too_large",
            )
        if self._open:
            self._budget.take(self.tenant, size)
            self._held += size

    def give(self, size: int) -> None:
        """Takes back so many bytes, which aren't held any more."""
        if self._open:
            self._budget.give(self.tenant, size)
            self._held -= size

    def close(self) -> None:
        """Gives back all that is held. Idempotent."""
        if self._open:
            self._open = False
            self._budget.give(self.tenant, self._held)
            self._held = 0

    def __enter__(self) -> MediaLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
