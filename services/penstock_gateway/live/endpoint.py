"""The endpoint: it passes on the broadcast's events at the reader's pace."""

from __future__ import annotations

import asyncio
import os
import time

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.client.live import EngineShown
from penstock.process.memory import resident_bytes
from penstock.protocol.live import Snapshot
from penstock_gateway.http.errors import leaving, unavailable
from penstock_gateway.http.events import EventStream, room_of, while_connected
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.service import Service

# What an event of the live view holds.


class GatewayRow(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway that sends it. tokens_per_second: generated, through it, since the event before.
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


OPERATION = Operation(
    method="GET",
    path="/live",
    summary="Live state of the engine cores and this gateway: an event `snapshot` twice a second",
    tag="operations",
    access="admin",
    reply=LiveState,
    media_type="text/event-stream",
)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    return [OPERATION.route(LiveEndpoint(service))]


class LiveEndpoint:
    """An ASGI application. Its streams are no requests: nobody waits for them when the gateway
    leaves."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._broadcast = Broadcast(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._service.draining:
            raise leaving()
        events = EventStream(
            send, keepalive=self._service.config.keepalive_interval, room=room_of(scope)
        )
        if scope["method"] == "HEAD":
            await events.write(b"", last=True)
            return
        watcher = self._broadcast.join()
        try:
            await while_connected(_stream(watcher, events), receive, events.tick)
        finally:
            self._broadcast.leave(watcher)


async def _stream(watcher: Watcher, events: EventStream) -> None:
    """A write waits for a client that doesn't read; what comes meanwhile is not kept for it."""
    while event := await watcher.next():
        await events.write(event)
    await events.write(b"", last=True)


# One event for all viewers, made once, and only while somebody is watching.

MAX_WATCHERS = 8
"""Viewers at once, for each gateway; one more gets a 503."""
RETRY_AFTER = 10.0

INTERVAL = 0.5
"""Seconds between events, at least."""
LONGEST_SILENCE = 1.0
"""Seconds without news from any engine after which there is an event all the same: who watches sees
that the gateway is there, and how old what it shows is."""
LAG_SAMPLES = 5
"""Naps in an interval; the one that lasts longest beyond its time is the loop's lag."""


class Watcher:
    """One connection. It takes the latest event when it can, and misses those between."""

    def __init__(self) -> None:
        self._event = b""
        self._news = asyncio.Event()

    def put(self, event: bytes) -> None:
        self._event = event
        self._news.set()

    async def next(self) -> bytes:
        """The latest event that it has not had; empty: there will be no more."""
        await self._news.wait()
        self._news.clear()
        return self._event


class Broadcast:
    """join and leave come in pairs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None

    def join(self) -> Watcher:
        """Raises HTTPError 503 where too many watch already."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise unavailable(
                f"{MAX_WATCHERS} clients are already watching this gateway's live view, the "
                "maximum",
                "too_many_watchers",
                RETRY_AFTER,
            )
        watcher = Watcher()
        self._watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        if not self._watchers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        news = asyncio.Event()
        backends = self._service.models.backends
        stops = [backend.client.live.watch(news.set) for backend in backends]
        gauge = GatewayGauge(self._service)
        lag = 0.0
        try:
            while not self._service.draining:
                await _wait(news, LONGEST_SILENCE - INTERVAL)
                event = self._event(gauge, lag)
                for watcher in self._watchers:
                    watcher.put(event)
                lag = await _nap(INTERVAL)
        finally:
            for stop in stops:
                stop()
        for watcher in self._watchers:
            watcher.put(b"")

    def _event(self, gauge: GatewayGauge, lag: float) -> bytes:
        now = time.monotonic()
        state = LiveState(
            time=round(time.time(), 3),
            gateway=gauge.row(loop_lag=lag, watchers=len(self._watchers)),
            engines=[
                engine_live(shown, backend.name, now)
                for backend in self._service.models.backends
                for shown in backend.client.live.engines
            ],
        )
        return b"event: snapshot\ndata: " + msgspec.json.encode(state) + b"\n\n"


async def _wait(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        pass
    news.clear()


async def _nap(seconds: float) -> float:
    """Sleeps; returns by how much the loop was late, at most, in that time."""
    loop = asyncio.get_running_loop()
    each, late = seconds / LAG_SAMPLES, 0.0
    for _ in range(LAG_SAMPLES):
        begun = loop.time()
        await asyncio.sleep(each)
        late = max(late, loop.time() - begun - each)
    return late
