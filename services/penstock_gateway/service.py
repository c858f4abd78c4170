"""What all endpoints share: the engine client, the configuration, this gateway's own counts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.config import GatewayConfig
from penstock.errors import EngineUnavailable

if TYPE_CHECKING:
    from penstock.client import EngineClient, ModelText
    from penstock.protocol.to_frontend import Status, Welcome

STATUS_MAX_AGE = 2.0
"""Seconds after which the engine's last word about itself says nothing about now: four beats."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take, in seconds. head: to send a request's headers.
    body: to send its body.  reader: to empty its connection once that is full."""

    head: float = 30.0
    body: float = 60.0
    reader: float = 60.0


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine core as a request finds it."""

    welcome: Welcome
    text: ModelText


@dataclass(slots=True)
class Service:
    """One gateway. open_requests: generations being answered.  draining: told to leave."""

    client: EngineClient
    config: GatewayConfig
    patience: Patience = Patience()
    open_requests: int = 0
    draining: bool = False
    started: float = field(default_factory=time.monotonic)

    def engine(self) -> Engine:
        """Raises EngineUnavailable when there is no session."""
        welcome, text = self.client.welcome, self.client.text
        if not self.client.connected or welcome is None or text is None:
            raise EngineUnavailable("there is no session with an engine core at the moment")
        return Engine(welcome, text)

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
