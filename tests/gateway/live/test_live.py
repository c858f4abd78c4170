"""GET /live: who may watch and how many, what comes and how often, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import GatewayConfig
from penstock.protocol.from_frontend import FromFrontend, Watch
from penstock_gateway.http.events import EventStream
from penstock_gateway.live.endpoint import MAX_WATCHERS, Watcher, _stream
from tests.engine.harness import Harness
from tests.engine.live.shown_core import shown
from tests.gateway.fake_engine import FakeEngineClient, welcome
from tests.gateway.keyring import ADMIN, ALICE, bearer, key, write
from tests.gateway.live_gateway import Connection, LiveGateway


class ShowingEngine(FakeEngineClient):
    """Its feed has one engine, which shows a real core four times a second to who has a lease."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: list[float] = []
        self.harness = Harness()
        self.view = shown(self.harness)
        front = self.harness.connect()
        self.harness.start_worker()
        self.harness.submit(front, [3, 4, 5], ignore_eos=True)
        self.harness.run_step()
        self.live.opened("tcp://engine:1", welcome(live=True), self._hear)
        self.stopped = threading.Event()

    def _hear(self, message: FromFrontend) -> None:
        assert isinstance(message, Watch)
        self.watches.append(message.seconds)

    def show(self) -> None:
        """In the gateway's own thread."""
        self.live.take("tcp://engine:1", self.view.snapshot(self.harness.now), time.monotonic())
        self.live.tick(time.monotonic())


@pytest.fixture
def engine() -> ShowingEngine:
    return ShowingEngine()


@pytest.fixture
def gateway(engine: ShowingEngine) -> Iterator[LiveGateway]:
    with LiveGateway(engine, GatewayConfig()) as running, showing(running, engine):
        yield running


@contextlib.contextmanager
def showing(gateway: LiveGateway, engine: ShowingEngine) -> Iterator[None]:
    def pump() -> None:
        while not engine.stopped.wait(0.25):
            with contextlib.suppress(RuntimeError):
                gateway.loop.call_soon_threadsafe(engine.show)

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        yield
    finally:
        engine.stopped.set()
        thread.join()


def ask(gateway: LiveGateway, method: str = "GET", **headers: str) -> Connection:
    connection = gateway.connect()
    lines = [f"{method} /live HTTP/1.1", "host: g", *(f"{k}: {v}" for k, v in headers.items())]
    connection.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
    return connection


def events(connection: Connection, count: int) -> list[dict[str, Any]]:
    """The data of the first events; a chunk of the body is a whole event."""
    data = b""
    while data.count(b"event: snapshot\n") < count or not data.endswith(b"\n\n\r\n"):
        more = connection.socket.recv(65_536)
        assert more, data
        data += more
    lines = [line for line in data.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


def test_events_come_twice_a_second_and_hold_the_engine_and_the_gateway(
    gateway: LiveGateway, engine: ShowingEngine
) -> None:
    begun = time.monotonic()
    with ask(gateway) as connection:
        head = connection.read_until(b"\r\n\r\n")
        told = events(connection, 4)
    took = time.monotonic() - begun
    assert b"200 OK" in head
    assert b"text/event-stream" in head
    assert took >= 1.5, "four events are three intervals"
    assert all(b["time"] - a["time"] >= 0.49 for a, b in itertools.pairwise(told))
    row = told[-1]["gateway"]
    assert row["pid"] == os.getpid()
    assert row["watchers"] == 1
    assert row["rss"] > 10_000_000
    assert row["loop_lag"] >= 0
    (shown_engine,) = told[-1]["engines"]
    assert (shown_engine["engine"], shown_engine["connected"]) == ("tcp://engine:1", True)
    assert min(event["engines"][0]["age"] for event in told) < 2
    snapshot = shown_engine["snapshot"]
    assert snapshot["batch"]["running"] == 1
    assert snapshot["batch"]["rows"][0]["request"] == "r1"


def test_an_engine_that_left_is_shown_as_gone(gateway: LiveGateway, engine: ShowingEngine) -> None:
    with ask(gateway) as connection:
        connection.read_until(b"\n\n")
        engine.stopped.set()
        gateway.loop.call_soon_threadsafe(engine.live.ended, "tcp://engine:1", "it was killed")
        gone = events(connection, 3)[-1]["engines"][0]
    assert (gone["connected"], gone["reason"]) == (False, "it was killed")
    assert gone["snapshot"] is None


def test_so_many_may_watch_and_share_one_lease(gateway: LiveGateway, engine: ShowingEngine) -> None:
    with contextlib.ExitStack() as stack:
        watching = [stack.enter_context(ask(gateway)) for _ in range(MAX_WATCHERS)]
        for connection in watching:
            connection.read_until(b"\n\n")
        assert engine.watches[0] > 0
        assert 0 not in engine.watches
        with ask(gateway) as refused:
            answer = refused.read_until(b"too_many_watchers")
        assert b" 503 " in answer
        assert b"retry-after: 10" in answer
        # What came while the others joined is before it.
        while events(watching[0], 1)[-1]["gateway"]["watchers"] != MAX_WATCHERS:
            pass
    until(lambda: engine.watches[-1] == 0, "the lease is given back when the last one leaves")
    with ask(gateway) as connection:
        connection.read_until(b"\n\n")


async def test_a_slow_reader_misses_events_instead_of_having_them_kept() -> None:
    sent: list[bytes] = []
    has_room = asyncio.Event()

    async def send(message: Any) -> None:
        await has_room.wait()
        sent.append(message.get("body", b""))

    watcher = Watcher()
    task = asyncio.create_task(_stream(watcher, EventStream(send, keepalive=0)))
    watcher.put(b"1")
    await turns()
    for event in (b"2", b"3", b"4"):
        watcher.put(event)
        await turns()
    has_room.set()
    await turns()
    assert list(filter(None, sent)) == [b"1", b"4"], "the one on its way, and the latest"
    watcher.put(b"")
    await asyncio.wait_for(task, 60)


async def turns() -> None:
    """The others do all that they can without something new."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_nobody_waits_for_a_watcher_when_the_gateway_leaves(engine: ShowingEngine) -> None:
    with LiveGateway(engine, GatewayConfig(shutdown_timeout=600)) as gateway, ask(gateway) as one:
        one.read_until(b"\n\n")
        gateway.leave()
        assert one.read_all().endswith(b"0\r\n\r\n"), "the stream ends in order"
    assert engine.watches[-1] == 0


def test_head_says_what_a_get_would_be(gateway: LiveGateway) -> None:
    with ask(gateway, "HEAD") as connection:
        assert b"text/event-stream" in connection.read_until(b"\r\n\r\n")


def test_with_keys_it_is_an_admins(engine: ShowingEngine, tmp_path: Path) -> None:
    keys = write(tmp_path / "keys.json", key(ALICE), key(ADMIN, admin=True))
    with LiveGateway(engine, GatewayConfig(api_keys=keys)) as gateway:
        for headers, status in (({}, 401), (bearer(ALICE), 403), (bearer(ADMIN), 200)):
            with ask(gateway, **headers) as connection:
                assert f" {status} ".encode() in connection.read_until(b"\r\n\r\n")


def until(holds: Any, what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() >= deadline:
            raise TimeoutError(repr(what))
        time.sleep(0.02)
