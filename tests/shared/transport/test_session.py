"""A front end's session: an event loop that is busy, and engine cores that live and do nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock import SamplingParams
from penstock.client import EngineClient
from penstock.client.session_state import EngineProgress
from penstock.transport import heartbeat
from testing.scripted_engine import FAST, ScriptedEngine
from tests.shared.client.client_requests import collect, until
from tests.shared.transport.transport_wire import Clock

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]

PARAMS = SamplingParams(max_tokens=50, seed=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time as the heartbeat is told it."""
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=clock))
    return clock


def block_until(done: Callable[[], object]) -> None:
    """Waits as `until` does, while the event loop stands still."""
    deadline = time.monotonic() + 60
    while not done():
        if time.monotonic() >= deadline:
            raise TimeoutError("it didn't happen in time")
        time.sleep(0.002)


async def test_an_event_loop_that_is_busy_loses_no_session(engine, client, clock):
    """Front end and engine core are in one loop here, which stands still for three timeouts."""
    generation = await client.submit(list(b"x"), PARAMS, name="r")
    await until(lambda: engine.submits)
    [session] = client._fleet
    heartbeat.PROCESS.join(engine.server)
    try:
        numberings = session.transport._numbering, engine.server._numberings[engine.session]
        engine.text(engine.submits[0], "while you were busy", finish="length")
        over = clock() + 3 * FAST.peer_timeout
        while clock() < over:
            clock.ahead += FAST.peer_timeout / 3
            since = clock()
            block_until(lambda t=since: min(numbering.last_heard for numbering in numberings) >= t)
        assert session.transport.more, "what has come waits for the loop"
        assert (await collect(generation))[0][0] == "while you were busy"
    finally:
        heartbeat.PROCESS.leave(engine.server)
    assert session.transport._numbering is numberings[0], "it is the same session"
    assert engine.ended == []


async def test_a_turn_leaves_the_loop_to_others(engine, client, monkeypatch):
    """Much has come at once, and every message takes a while: others have their turns between."""
    [session] = client._fleet
    turns, spent = 0, [0]
    clock = Clock()
    monkeypatch.setattr("penstock.transport.inbound.time", SimpleNamespace(monotonic=clock))
    handle = session._handle

    def slow(event: Any, now: float) -> None:
        spent[turns] += 1
        clock.ahead += 0.006
        handle(event, now)

    monkeypatch.setattr(session, "_handle", slow)
    for waiting in range(40):
        engine.tell(waiting=waiting)
    while session.status is None or session.status.waiting < 39:
        await asyncio.sleep(0)
        turns += 1
        spent.append(0)
        assert turns < 1_000_000
    assert sum(spent) >= 40
    assert max(spent) <= 4 + 2, "there may be further looks in an iteration, for a message each"


async def test_sessions_share_the_time_of_an_iteration(two, monkeypatch):
    """Each by itself might take its time in every iteration, and several times in one."""
    first, second, client = two
    clock, spent, begun = Clock(), [], time.monotonic()
    for module in ("penstock.transport.inbound", "penstock.client.session"):
        # What a busy machine takes besides isn't a message's.
        standing = SimpleNamespace(monotonic=lambda: begun + clock.ahead)
        monkeypatch.setattr(f"{module}.time", standing)

    def slow(event: Any, now: float) -> None:
        spent.append(event)
        clock.ahead += 0.006

    for session in client._fleet:
        monkeypatch.setattr(session, "_handle", slow)
    for _ in range(20):
        first.tell()
        second.tell()
    while not all(session.transport.due() for session in client._fleet):
        time.sleep(0.01)
    await asyncio.sleep(0)
    spent.clear()
    for _ in range(3):
        for session in client._fleet:
            session.pump()
    assert 4 <= len(spent) <= 4 + 5, "as long as READING, and one more for each further look"


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine, EngineClient]]:
    """Engine cores that tell their state, and a client that wants to hear it."""
    places = [f"ipc://{tmp_path}/{name}" for name in "ab"]
    engines = [
        ScriptedEngine(place, boot=boot, telling=True)
        for place, boot in zip(places, (b"boot-one", b"boot-two"), strict=True)
    ]
    settings = msgspec.structs.replace(FAST, progress_timeout=2.0)
    client = EngineClient(",".join(places), name="test", settings=settings)
    await client.start()
    await until(lambda: all(each.ready for each in client.engines))
    yield engines[0], engines[1], client
    await client.close()
    for engine in engines:
        await engine.die()


async def test_an_engine_that_beats_and_tells_nothing_is_left(two):
    stuck, other, client = two
    other.tell(running=100)
    await until(lambda: any(e.status and e.status.running == 100 for e in client.engines))
    generation = await client.submit(list(b"x"), PARAMS, name="r")
    await until(lambda: stuck.submits)
    stuck.telling = False  # Its server is polled on, and beats.
    await until(lambda: other.submits)
    await until(lambda: stuck.ended)
    [left] = [s for s in client._fleet if s.endpoint.endswith("/a")]
    assert left.transport.last_reason == "the engine core is alive but sent no status for 2 s"
    other.text(other.submits[-1], "from the other", finish="length")
    assert (await collect(generation))[0][0] == "from the other"


async def test_what_we_did_not_listen_to_is_not_held_against_it():
    progress = EngineProgress(10.0)
    progress.heard(100.0)
    assert progress.stuck(110.0) == ""
    assert "sent no status for 10 s" in progress.stuck(110.5)
    progress.not_heard(4.0, 110.5)  # It had time enough apart from that.
    assert progress.stuck(110.5)
    progress.not_heard(9.0, 110.5)
    assert progress.stuck(120.5) == ""
    assert progress.stuck(121.0)
