"""What an event of the live view holds."""

from __future__ import annotations

import os
import time

import msgspec

from penstock.client.live import EngineShown
from penstock.process.memory import resident_bytes
from penstock.protocol.live import Snapshot
from penstock_gateway.service import Service


class GatewayRow(msgspec.Struct, frozen=True, kw_only=True):
    """This gateway. tokens_per_second: generated, through it, since the event before.
    loop_lag: seconds by which its event loop was late, at most, since then.
    rss: bytes of memory; null where the system doesn't tell.  watchers: of the live view."""

    pid: int
    open_requests: int
    tokens_per_second: float
    loop_lag: float
    rss: int | None
    uptime: float
    watchers: int
    draining: bool


class EngineLive(msgspec.Struct, frozen=True, kw_only=True):
    """One engine core, as this gateway sees it. engine: its endpoint.  model: its model's name.
    knows: whether its build knows the live view.  reason: why it isn't connected.  age: of the
    snapshot, seconds."""

    engine: str
    model: str | None
    connected: bool
    knows: bool
    reason: str
    age: float | None
    snapshot: Snapshot | None


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a `snapshot` event. time: Unix time, seconds."""

    time: float
    gateway: GatewayRow
    engines: list[EngineLive]


class GatewayGauge:
    """Measures this gateway between one event and the next."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tokens = _tokens_of(service)
        self._at = time.monotonic()

    def row(self, *, loop_lag: float, watchers: int) -> GatewayRow:
        """The gateway's figures as of now."""
        service, now = self._service, time.monotonic()
        tokens = _tokens_of(service)
        rate = (tokens - self._tokens) / max(now - self._at, 1e-3)
        self._tokens, self._at = tokens, now
        return GatewayRow(
            pid=os.getpid(),
            open_requests=service.open_requests,
            tokens_per_second=round(rate, 1),
            loop_lag=round(loop_lag, 4),
            rss=resident_bytes(),
            uptime=round(now - service.started, 1),
            watchers=watchers,
            draining=service.draining,
        )


def _tokens_of(service: Service) -> int:
    return sum(backend.counts.generation_tokens for backend in service.models.backends)


def engine_live(shown: EngineShown, model: str | None, now: float) -> EngineLive:
    """now: on the clock by which the snapshot came."""
    return EngineLive(
        engine=shown.engine,
        model=model,
        connected=shown.connected,
        knows=shown.knows,
        reason=shown.reason,
        age=round(now - shown.at, 3) if shown.snapshot is not None else None,
        snapshot=shown.snapshot,
    )
