"""The front end's side of the live view: one lease for all, and only where it is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.client import EngineClient
from penstock.client.live import LEASE, RENEWAL, LiveFeed
from penstock.protocol.from_frontend import Watch
from penstock.protocol.to_frontend import Welcome
from penstock.transport.events import Received
from testing.scripted_engine import FAST, ScriptedEngine
from tests.engine.harness import Harness
from tests.engine.live.shown_core import shown

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]


class ShowingEngine(ScriptedEngine):
    """knows: whether its Welcome says that it knows Watch."""

    def __init__(self, endpoint: str, *, knows: bool = True, **options: Any) -> None:
        self.knows = knows
        self.watches: list[float] = []
        super().__init__(endpoint, **options)

    def welcome(self) -> Welcome:
        return msgspec.structs.replace(super().welcome(), live=self.knows)

    def _take(self, event: Any) -> None:
        super()._take(event)
        if isinstance(event, Received) and isinstance(event.message, Watch):
            self.watches.append(event.message.seconds)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


@pytest.fixture
async def client(endpoint: str) -> AsyncIterator[EngineClient]:
    client = EngineClient(endpoint, name="test", settings=FAST)
    await client.start()
    yield client
    await client.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_watchers_share_a_lease_which_ends_with_the_last(
    endpoint: str, client: EngineClient
) -> None:
    engine = ShowingEngine(endpoint)
    await client.wait_connected(60)
    told: list[int] = []
    stops = [client.live.watch(lambda: told.append(1)), client.live.watch(lambda: told.append(2))]
    await until(lambda: engine.watches)
    snapshot = shown(Harness()).snapshot(0.0)
    engine.send(snapshot)
    await until(lambda: client.live.engines[0].snapshot)
    assert told == [1, 2]
    assert client.live.engines[0].snapshot == snapshot
    stops[0]()
    stops[0]()
    await asyncio.sleep(0.1)
    assert 0 not in engine.watches
    stops[1]()
    await until(lambda: 0 in engine.watches)
    assert client.live.engines[0].snapshot is None
    # One that was on its way is not kept.
    engine.send(snapshot)
    await asyncio.sleep(0.1)
    assert client.live.engines[0].snapshot is None
    await engine.die()


async def test_a_lease_is_asked_for_again_from_an_engine_that_came_back(
    endpoint: str, client: EngineClient
) -> None:
    first = ShowingEngine(endpoint)
    await client.wait_connected(60)
    stop = client.live.watch(lambda: None)
    await until(lambda: first.watches)
    await first.die()
    await until(lambda: not client.live.engines[0].connected)
    assert client.live.engines[0].reason
    second = ShowingEngine(endpoint, boot=b"boot-two")
    await until(lambda: second.watches)
    assert second.watches[0] == LEASE
    stop()
    await second.die()


async def test_an_engine_that_does_not_know_it_is_never_asked(
    endpoint: str, client: EngineClient
) -> None:
    engine = ShowingEngine(endpoint, knows=False)
    await client.wait_connected(60)
    stop = client.live.watch(lambda: None)
    client.live.tick(1e9)
    await asyncio.sleep(0.3)
    assert engine.watches == []
    assert engine.ended == []
    assert (client.live.engines[0].connected, client.live.engines[0].knows) == (True, False)
    stop()
    await engine.die()


async def test_a_lease_is_renewed_in_time_and_only_while_somebody_watches() -> None:
    feed = LiveFeed()
    sent: list[Any] = []
    engine = Harness().connect().welcome
    assert engine is not None
    feed.opened("a", engine, sent.append)
    feed.tick(0.0)
    assert sent == []
    stop = feed.watch(lambda: None)
    for tenths in range(1000):
        feed.tick(tenths / 10)
    assert all(message.seconds == LEASE for message in sent)
    assert 100 / RENEWAL <= len(sent) <= 100 / RENEWAL + 2
    assert RENEWAL < LEASE / 2
    stop()
    count = len(sent)
    feed.tick(1e6)
    assert len(sent) == count
    feed.forget("a")
    assert feed.engines == []
