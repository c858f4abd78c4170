"""What all endpoints share: the models, the configuration, this gateway's own counts."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.config.settings import GatewayConfig, MediaSettings, StorageSettings
from penstock.errors import Limited, Overloaded
from penstock.media.desk import MediaDesk
from penstock_gateway.http.body_room import BODIES, BodyRoom
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.events import Answering
from penstock_gateway.keys.rate_limits import RateLimits
from penstock_gateway.keys.ring import KeyRing, current
from penstock_gateway.models.backend import ModelRegistry
from penstock_gateway.preparing.pool import Preparers
from penstock_gateway.storage.held_responses import LOST, HeldResponses

if TYPE_CHECKING:
    from penstock_gateway.receipts import Receipts
    from penstock_gateway.storage.response_records import ResponseRecords
    from penstock_gateway.storage.store import Store
    from penstock_gateway.tracing.tracer import Tracing


@dataclass(slots=True)
class LineCounts:
    """Since the process began."""

    completed: int = 0
    """Answered with 200."""
    failed: int = 0
    """Answered with an error."""
    refused: int = 0
    """Answers that said later; the line is asked again."""
    open: int = 0
    """Being answered now."""


RETRY_AFTER = 5.0
"""Seconds: what takes a place here goes on for a while."""


class Places:
    """Counts open requests. Belongs to one event loop.

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


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take, in seconds."""

    head: float = 30.0
    """Seconds to send a request's headers."""
    body: float = 60.0
    """Seconds to send a request's body."""
    reader: float = 60.0
    """Seconds to empty a reader's connection once that is full."""


@dataclass(slots=True)
class Service:
    """What all endpoints of a gateway share."""

    models: ModelRegistry
    config: GatewayConfig
    patience: Patience = Patience()
    ring: KeyRing | None = None
    """The API keys; None: everybody may ask."""
    limits: RateLimits | None = None
    """What keys may use in a minute; None where there are no keys."""
    tracing: Tracing | None = None
    """Makes traces; None if they are off."""
    store: Store | None = None
    """Files and batches; None: there is no folder for them."""
    held: HeldResponses | None = None
    """Responses that are held in memory; None where the store keeps them, or none are."""
    media: MediaDesk = field(default_factory=lambda: MediaDesk(MediaSettings()))
    """What prepares the pictures of requests."""
    receipts: Receipts | None = None
    """None: none are given."""
    lines: LineCounts | None = None
    """Counts of batches' lines; None where this process works on none."""
    connections: Places = field(init=False)
    """Places for the gateway's WebSockets."""
    uploads: Places = field(init=False)
    """Uploads in progress."""
    preparers: Preparers = field(init=False)
    """Prepare the bodies of requests in processes of their own."""
    bodies: BodyRoom = field(init=False)
    """Room for bodies that are being read and prepared."""
    followers: Places = field(init=False)
    """Streams of stored responses, which may wait for an answer's end."""
    responses: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """HTTP responses, by status; an open stream is counted when it begins, and a WebSocket, as
    101."""
    answering: Answering = field(default_factory=Answering)
    """Around the work for each request."""
    draining: bool = False
    """Whether the gateway was asked to leave: what is new is refused, what is open goes on."""
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        config = self.config
        self.preparers = Preparers(self._served)
        self.bodies = BodyRoom(BODIES * config.max_body_bytes)
        self.connections = Places(
            "WebSockets open",
            config.max_realtime_connections,
            config.max_realtime_tenant_connections,
            "--max-realtime-connections",
            "--max-realtime-tenant-connections",
        )
        storage = StorageSettings() if self.store is None else self.store.settings
        self.uploads = Places(
            "uploads in progress",
            storage.max_uploads,
            storage.max_tenant_uploads,
            "--max-uploads",
            "--max-tenant-uploads",
        )
        self.followers = Places(
            "streams of stored responses open",
            10 * storage.max_background_responses,
            storage.max_background_responses,
            "ten times --max-background-responses",
            "--max-background-responses",
        )

    def _served(self) -> tuple[object, ...]:
        """What preparers are forked with."""
        clients = [backend.client for backend in self.models.backends]
        return tuple(part for client in clients for part in (client.welcome, client.text))

    def close(self) -> None:
        """Ends the processes that work for requests. Idempotent."""
        self.media.close()
        self.preparers.close()

    async def leave(self) -> None:
        """Closes, and sends what is left: what keys have used, traces."""
        self.close()
        if self.limits is not None:
            await self.limits.close()
        if self.tracing is not None:
            await self.tracing.close()

    @property
    def open_requests(self) -> int:
        """Requests that are being answered."""
        return self.answering.count

    def stored(self) -> Store:
        """Files and batches. Raises HTTPError 404 where the server keeps none."""
        if self.store is None:
            raise HTTPError(
                404,
                "this server stores no files and no batches; its operator can enable that with "
                "--data-dir",
                code="storage_off",
            )
        return self.store

    @property
    def kept_responses(self) -> ResponseRecords | HeldResponses | None:
        """Responses that requests may go on from; None where none are kept."""
        return self.held if self.store is None else self.store.responses or self.held

    @property
    def why_lost(self) -> str:
        """What is to be said of a response that isn't there."""
        return "" if self.held is None else LOST

    def served(self) -> str | None:
        """The model's name, once it is known; None, too, where there are several."""
        return None if self.models.several else self.models.backends[0].name

    def unready_reason(self) -> str | None:
        """None when a request would be served now, else why not. Of several models, one is
        enough."""
        if self.draining:
            return "this gateway is shutting down"
        reasons: list[str] = []
        for backend in self.models.backends:
            reason = backend.unready_reason()
            if reason is None or backend.on_demand:
                return None
            named = self.models.several and self._may_name(backend.name)
            reasons.append(f"{backend.name}: {reason}" if named else reason)
        return "; ".join(dict.fromkeys(reasons))

    def _may_name(self, model: str | None) -> bool:
        """Whether the caller may know of the model. Health checks have no key: where there are
        keys, they see no names."""
        caller = current.get()
        known = self.ring is None or caller.key is not None
        return known and model is not None and caller.may_use(model)
