"""Servers over real sockets whose loop has a heartbeat, and what it says of requests."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.config.settings import GatewayConfig
from penstock_gateway.service import Service
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.heartbeat.beating import LATEST, Heartbeat
from tests.gateway.live_gateway import LiveGateway

ATTEMPTS = 8
"""Attempts at something that came late: what takes that long does so each time."""
PAUSE = 0.25
"""Seconds between two of them, times how many there were: what else the machine does may slow all
that are close together."""
PATIENCE = 120
"""Seconds for an answer."""

Answer = TypeVar("Answer")


class BeatenLoop:
    """loop: has the heartbeat."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heart = Heartbeat()

    def begin(self) -> None:
        self._on_loop(self._heart.begin())

    def end(self) -> None:
        self._on_loop(self._heart.end())

    def watched(self, ask: Callable[[], Answer]) -> tuple[Answer, float]:
        """What `ask` returns, and by how many seconds a beat was late meanwhile: the least of some
        attempts where that is more than LATEST, the least that latest() ever allows."""
        least = float("inf")
        for attempt in range(ATTEMPTS):
            time.sleep(attempt * PAUSE)
            self._on_loop(self._heart.settle())
            self._heart.late = 0.0
            answer = ask()
            self._on_loop(self._heart.settle())
            least = min(least, self._heart.late)
            if least <= LATEST:
                break
        return answer, least

    def _on_loop(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)


class BeatenGateway(BeatenLoop):
    """A gateway at a port."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int, service: Service) -> None:
        super().__init__(loop)
        self.port = port
        self.service = service

    def answer(
        self, path: str, body: bytes, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        """Status and body of the reply."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", path, body, {"content-type": content_type})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> int:
        """The status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            try:
                connection.request("POST", path, body, {"content-type": content_type})
            except ConnectionError:
                pass  # It was answered before its end.
            answer = connection.getresponse()
            while answer.read(1 << 20):
                pass
            return answer.status
        finally:
            connection.close()


@contextmanager
def beaten(engine: FakeEngineClient, store: Any = None, **settings: Any) -> Iterator[BeatenGateway]:
    with LiveGateway(engine, GatewayConfig(**settings)) as gateway:
        service: Service = gateway.service
        service.store = store
        found = BeatenGateway(gateway.loop, gateway.port, service)
        deadline = time.monotonic() + PATIENCE
        while not gateway.loop.is_running() and time.monotonic() < deadline:
            time.sleep(0.01)
        found.begin()
        try:
            yield found
        finally:
            found.end()
