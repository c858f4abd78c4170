"""What all endpoints share: the engine client, the configuration, this gateway's own counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.session import STATUS_MAX_AGE
from penstock.config.settings import GatewayConfig, MediaSettings
from penstock.errors import EngineUnavailable
from penstock.media.desk import MediaDesk
from penstock.protocol.common import AdapterFile
from penstock_gateway.adapters.loading import AdapterFolders, AdapterLoader
from penstock_gateway.http.errors import HTTPError, model_not_found
from penstock_gateway.keys.caller import current
from penstock_gateway.keys.rate_limits import RateLimits
from penstock_gateway.keys.ring import KeyRing
from penstock_gateway.keys.spend import SpendObserver
from penstock_gateway.metrics.counts import GatewayCounts
from penstock_gateway.realtime.connections import Connections

if TYPE_CHECKING:
    from penstock.client import EngineClient, ModelText
    from penstock.protocol.to_frontend import Status, Welcome
    from penstock_gateway.storage.store import Store
    from penstock_gateway.tracing.tracer import Tracing


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take, in seconds."""

    head: float = 30.0
    """To send a request's headers."""
    body: float = 60.0
    """To send a request's body."""
    reader: float = 60.0
    """To empty its connection once that is full."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The engine core as a request finds it."""

    welcome: Welcome
    text: ModelText


class AskedModel(NamedTuple):
    """What a request asks for."""

    name: str
    """As replies have it."""
    adapter: AdapterFile | None
    """What is applied to the model; None: nothing."""


@dataclass(slots=True)
class Service:
    """One gateway."""

    client: EngineClient
    config: GatewayConfig
    patience: Patience = Patience()
    ring: KeyRing | None = None
    """The API keys; None: everybody may ask."""
    limits: RateLimits | None = None
    """What keys may use in a minute; None where there are no keys."""
    spend: SpendObserver | None = None
    """What keys have used; None where there are no keys."""
    tracing: Tracing | None = None
    """None where traces are off."""
    store: Store | None = None
    """Files and batches; None: there is no folder for them."""
    media: MediaDesk = field(default_factory=lambda: MediaDesk(MediaSettings()))
    """What prepares the pictures of requests."""
    adapters: AdapterLoader = field(init=False)
    """What loads adapters by name."""
    folders: InitVar[AdapterFolders | None] = None
    """Where adapters may be read; None: nowhere."""
    connections: Connections = field(init=False)
    """Its WebSockets."""
    counts: GatewayCounts = field(default_factory=GatewayCounts)
    open_requests: int = 0
    """Requests that are being answered."""
    draining: bool = False
    """Told to leave: what is new is refused, what is open goes on."""
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self, folders: AdapterFolders | None) -> None:
        self.adapters = AdapterLoader(self.client, folders or AdapterFolders())
        config = self.config
        self.connections = Connections(
            config.max_realtime_connections, config.max_realtime_tenant_connections
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Around the work for a request: a gateway that leaves waits for it."""
        self.open_requests += 1
        try:
            yield
        finally:
            self.open_requests -= 1

    def engine(self) -> EngineInfo:
        """Raises EngineUnavailable when there is no session, and was none a moment ago."""
        welcome, text = self.client.welcome, self.client.text
        if not self.client.takes_requests or welcome is None or text is None:
            raise EngineUnavailable("there is no session with an engine core at the moment")
        return EngineInfo(welcome, text)

    def stored(self) -> Store:
        """Files and batches. Raises HTTPError 404 where the server keeps none."""
        if self.store is None:
            raise HTTPError(
                404,
                "this server keeps no files and no batches; its operator says where with "
                "--data-dir",
                code="storage_off",
            )
        return self.store

    def served(self) -> str | None:
        """The model's name, once it is known."""
        welcome = self.client.welcome
        return welcome.model if welcome is not None else None

    def names(self) -> list[str]:
        """What requests may ask for: the model's name, once it is known, and those of adapters."""
        served = self.served()
        if served is None:
            return []
        return [served, *(adapter.name for adapter in self.client.adapters.present())]

    def check_model(self, name: str | None) -> AskedModel:
        """The model that a request gets which asks for `name`; None: for whatever is served.

        Raises EngineUnavailable, and HTTPError 404 or 403.
        """
        welcome = self.engine().welcome
        served, adapter = welcome.model, None
        if name is not None and name != served and name not in welcome.other_names:
            named = self.client.adapters.find(name)
            if named is None:
                raise model_not_found(name, served)
            served, adapter = name, named.file
        current.get().check_model(served)
        return AskedModel(served, adapter)

    def fresh_status(self) -> Status | None:
        """The engine's state, unless it is too old to mean anything."""
        if self.client.status_age(time.monotonic()) > STATUS_MAX_AGE:
            return None
        return self.client.status

    def unready_reason(self) -> str | None:
        """None when a request would be served now, else why not."""
        if self.draining:
            return "this gateway is shutting down"
        if not self.client.connected:
            return "no session with an engine core"
        status = self.fresh_status()
        if status is None:
            return f"the engine core has not reported its state for {STATUS_MAX_AGE:g} s"
        if status.draining:
            return "the engine core is draining"
        return None if status.ready else status.reason or "the engine core is not ready"
