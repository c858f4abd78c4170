"""What all endpoints share: the engine client, the configuration, this gateway's own counts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.client.session import STATUS_MAX_AGE
from penstock.config.settings import GatewayConfig
from penstock.errors import EngineUnavailable
from penstock_gateway.http.errors import model_not_found
from penstock_gateway.keys.caller import current
from penstock_gateway.keys.rate_limits import RateLimits
from penstock_gateway.keys.ring import KeyRing
from penstock_gateway.metrics.counts import GatewayCounts

if TYPE_CHECKING:
    from penstock.client import EngineClient, ModelText
    from penstock.protocol.to_frontend import Status, Welcome
    from penstock_gateway.tracing.tracer import Tracing


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take, in seconds. head: to send a request's headers.
    body: to send its body.  reader: to empty its connection once that is full."""

    head: float = 30.0
    body: float = 60.0
    reader: float = 60.0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The engine core as a request finds it."""

    welcome: Welcome
    text: ModelText


@dataclass(slots=True)
class Service:
    """One gateway. ring: the API keys; None: everybody may ask.  limits: by the minute; None: there
    are none.  tracing: None where it is off.  counts: what the client counts.
    open_requests: generations being answered.  draining: told to leave."""

    client: EngineClient
    config: GatewayConfig
    patience: Patience = Patience()
    ring: KeyRing | None = None
    limits: RateLimits | None = None
    tracing: Tracing | None = None
    counts: GatewayCounts = field(default_factory=GatewayCounts)
    open_requests: int = 0
    draining: bool = False
    started: float = field(default_factory=time.monotonic)

    def engine(self) -> EngineInfo:
        """Raises EngineUnavailable when there is no session, and was none a moment ago."""
        welcome, text = self.client.welcome, self.client.text
        if not self.client.takes_requests or welcome is None or text is None:
            raise EngineUnavailable("there is no session with an engine core at the moment")
        return EngineInfo(welcome, text)

    def served(self) -> str | None:
        """The model's name, once it is known."""
        welcome = self.client.welcome
        return welcome.model if welcome is not None else None

    def check_model(self, name: str | None) -> str:
        """The model that a request gets which asks for `name`; None: for whatever is served.

        Raises EngineUnavailable, and HTTPError 404 or 403.
        """
        served = self.engine().welcome.model
        if name is not None and name != served:
            raise model_not_found(name, served)
        current.get().check_model(served)
        return served

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
