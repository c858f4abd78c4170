"""The loop around the core: what is said is handled for a bounded time between two steps."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from penstock.config.settings import TransportSettings
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.from_frontend import Abort, FromFrontend, Hello
from penstock.protocol.from_worker import FromWorker, WorkerHello
from penstock.transport import inbound
from penstock.transport.session_server import SessionServer
from penstock.transport.wire import FrameKind
from penstock_engine import process
from penstock_engine.core import EngineCore
from penstock_engine.notes import SleepNote, WeightsNote
from penstock_engine.process import TURN, Loop
from tests.engine import small_facts
from tests.engine.engine_process import Peer
from tests.shared.transport.transport_wire import Clock

pytestmark = pytest.mark.timeout(240)

SETTINGS = TransportSettings(beat_interval=0.1, peer_timeout=60.0)
COST = TURN / 4
FLOOD = 100


class SlowCore(EngineCore):
    """Takes COST seconds of a clock for each message of a front end. said: what happened.

    busy: while it is set, a step doesn't end; in_step: it has begun.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(small_facts.facts())
        self.clock = clock
        self.said: list[Any] = []
        self.busy = threading.Event()
        self.in_step = threading.Event()

    def frontend_received(self, session: bytes, message: FromFrontend, now: float) -> None:
        self.said.append(message)
        self.clock.ahead += COST

    def worker_opened(self, session: bytes, message: FromWorker, now: float) -> None:
        self.said.append("worker")

    def step(self, now: float) -> Any:
        self.said.append("step")
        while self.busy.is_set():
            self.in_step.set()
            time.sleep(0.002)
        return super().step(now)


def test_a_flood_of_front_ends_leaves_room_for_steps_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    fake = SimpleNamespace(monotonic=clock)
    monkeypatch.setattr(inbound, "time", fake)
    monkeypatch.setattr(process, "time", fake)
    with zmq.Context() as context, zmq.Context() as peers:
        core = SlowCore(clock)
        places = [f"ipc://{tmp_path}/f", f"ipc://{tmp_path}/w"]
        decoders: list[Any] = [msgspec.msgpack.Decoder(u) for u in (FromFrontend, FromWorker)]
        servers = [
            SessionServer(context, place, decoder, SETTINGS, b"boot-one")
            for place, decoder in zip(places, decoders, strict=True)
        ]
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        loop = Loop(core, servers[0], servers[1], reader, 0.0, SleepNote(None), WeightsNote(None))
        running = threading.Thread(target=loop.run)
        running.start()
        front = Peer(peers, places[0], Any, Hello(list(PROTOCOL_VERSIONS), "test", 1))
        worker = Peer(peers, places[1], Any, WorkerHello(list(PROTOCOL_VERSIONS), 0, 1))
        try:
            _until(lambda: front.poll() or front.client.opened)
            core.busy.set()
            _until(core.in_step.is_set)
            for number in range(FLOOD):
                assert front.client.send(Abort(number))
            worker.poll()
            _until(lambda: worker.poll() or worker.client._numbering is not None)
            _until(lambda: _has_come(servers[1]))
            core.busy.clear()
            _until(lambda: Abort(FLOOD - 1) in core.said and "worker" in core.said)
        finally:
            core.busy.clear()
            writer.send(b"\0\0")
            running.join(60)
            for end in (front.client, worker.client, *servers):
                end.close()
            reader.close()
            writer.close()
    aborts = [each for each in core.said if isinstance(each, Abort)]
    assert aborts == [Abort(number) for number in range(FLOOD)]
    between, longest = 0, 0
    for each in core.said:
        between = between + 1 if isinstance(each, Abort) else 0
        longest = max(longest, between)
    assert longest <= TURN / COST + 1
    assert core.said.index("worker") < core.said.index(Abort(20)), "it need not wait for the flood"


BEATS = 40


def test_beats_of_front_ends_are_no_steps(tmp_path: Path) -> None:
    """Hundreds of front ends woke it hundreds of times a second, for a whole turn of the core."""
    core = SlowCore(Clock())
    settings = TransportSettings(beat_interval=60.0, peer_timeout=600.0)
    config = msgspec.structs.replace(core.state.facts.config, transport=settings)
    core.state.facts = msgspec.structs.replace(core.state.facts, config=config)
    place = f"ipc://{tmp_path}/f"
    with zmq.Context() as context, zmq.Context() as peers:
        servers = [
            SessionServer(context, each, msgspec.msgpack.Decoder(union), settings, b"boot-one")
            for each, union in ((place, FromFrontend), (f"ipc://{tmp_path}/w", FromWorker))
        ]
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        loop = Loop(core, servers[0], servers[1], reader, 0.0, SleepNote(None), WeightsNote(None))
        running = threading.Thread(target=loop.run)
        running.start()
        front = Peer(peers, place, Any, Hello(list(PROTOCOL_VERSIONS), "test", 1))
        try:
            _until(lambda: front.poll() or front.client.opened)
            [numbering] = servers[0]._numberings.values()
            _until(lambda: core.next_deadline() > time.monotonic() + 5)
            stepped = core.said.count("step")
            for _ in range(BEATS):
                with front.client.lock:
                    beat = front.client._numbering.seal(FrameKind.BEAT, time.monotonic())
                    assert front.client._put([beat])
                received = front.client._numbering._sent
                _until(lambda received=received: numbering._received == received)
            assert core.said.count("step") - stepped <= 2
        finally:
            writer.send(b"\0\0")
            running.join(60)
            for end in (front.client, *servers):
                end.close()
            reader.close()
            writer.close()


def _has_come(server: Any) -> bool:
    """Whether something lies there for the loop to take."""
    with server.lock:
        return server.more or server.socket.poll(0) != 0


def _until(done: Any) -> None:
    deadline = time.monotonic() + 60
    while not done():
        if time.monotonic() >= deadline:
            raise TimeoutError("it didn't happen in time")
        time.sleep(0.002)
