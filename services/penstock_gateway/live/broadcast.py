"""One event for all viewers, made once, and only while somebody is watching."""

from __future__ import annotations

import asyncio
import time

import msgspec

from penstock_gateway.http.errors import unavailable
from penstock_gateway.live.state import GatewayGauge, LiveState, engine_live
from penstock_gateway.service import Service

MAX_WATCHERS = 8
"""At once, for each gateway; one more gets a 503."""
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
