"""What a worker's two threads say to the engine core, and hear from it, over one socket."""

from __future__ import annotations

import itertools
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from penstock.config.settings import TransportSettings
from penstock.protocol.from_worker import FromWorker, Progress
from penstock.protocol.to_worker import ToWorker
from penstock.protocol.worker_resources import DropGrammar
from penstock.transport.events import Opened, Received
from penstock.transport.session_server import SessionServer
from penstock_worker.engine_session import CoreSession, Heard

pytestmark = pytest.mark.timeout(240)
SECONDS = 60.0
SILENT = TransportSettings(beat_interval=600.0, peer_timeout=1_200.0)
"""No beat comes to the aid of a thread that was not woken."""


class Engine:
    """The other end: a thread that answers each Progress by as many messages as `replies` says."""

    def __init__(self, endpoint: str, replies: Callable[[int], int]) -> None:
        self.steps: list[int] = []
        self._replies = replies
        self._endpoint = endpoint
        self._ending = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._ending = True
        self._thread.join()

    def _run(self) -> None:
        with zmq.Context() as context:
            decoder = msgspec.msgpack.Decoder(FromWorker)
            server: SessionServer[FromWorker] = SessionServer(
                context, self._endpoint, decoder, SILENT, b"boot-one", "workers"
            )
            try:
                while not self._ending:
                    server.socket.poll(5)
                    self._turn(server)
            finally:
                server.close()

    def _turn(self, server: SessionServer[FromWorker]) -> None:
        for event in server.poll(time.monotonic()):
            if isinstance(event, Opened):
                server.send(event.session, DropGrammar(0))
            elif isinstance(event, Received) and isinstance(event.message, Progress):
                step = event.message.step
                self.steps.append(step)
                for number in range(self._replies(step)):
                    server.send(event.session, DropGrammar(10 * step + number))


def number(message: ToWorker | None) -> int:
    assert isinstance(message, DropGrammar)
    return message.grammar


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/engine"


@pytest.fixture
def session(endpoint: str) -> Iterator[CoreSession]:
    session = CoreSession(endpoint, 0, SILENT)
    session.start()
    yield session
    session.close()


@pytest.fixture
def start(endpoint: str) -> Iterator[Callable[[Callable[[int], int]], Engine]]:
    engines: list[Engine] = []

    def start(replies: Callable[[int], int]) -> Engine:
        engines.append(Engine(endpoint, replies))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


Start = Callable[[Callable[[int], int]], Engine]


def arrived(engine: Engine, count: int) -> list[int]:
    """The steps that it was told of, once there are as many."""
    deadline = time.monotonic() + SECONDS
    while len(engine.steps) < count and time.monotonic() < deadline:
        time.sleep(0.002)
    return list(engine.steps)


def test_what_comes_while_the_main_thread_sends_is_heard(
    start: Start, session: CoreSession
) -> None:
    """Whoever is told by ZeroMQ's descriptor, which tells once."""
    engine = start(lambda step: step % 4)
    opening = session.inbox.get(timeout=SECONDS)
    assert opening.first
    heard: list[int] = []
    for step in range(1, 2_001):
        session.send(opening.session, Progress(step, 0))
        if step % 7 == 0:  # Else it sends while answers come.
            while len(heard) < sum(each % 4 for each in range(step + 1)):
                heard.append(number(session.inbox.get(timeout=SECONDS).message))
    wanted = [10 * step + n for step in range(1, 2_001) for n in range(step % 4)]
    while len(heard) < len(wanted):
        heard.append(number(session.inbox.get(timeout=SECONDS).message))
    assert heard == wanted
    assert arrived(engine, 2_000) == list(range(1, 2_001))


def test_who_sends_wakes_whoever_goes_to_wait(
    start: Start, session: CoreSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message comes between the thread's last look and its waiting, and the one who sends just
    then is told of it by the descriptor, which is silent afterwards."""
    engine = start(lambda step: int(step < 3))
    opening = session.inbox.get(timeout=SECONDS)
    between = threading.Event()

    def send(step: int) -> None:
        thread = threading.Thread(target=session.send, args=(opening.session, Progress(step, 0)))
        thread.start()
        thread.join()

    class Poll:
        def __init__(self, usual: select.poll) -> None:
            self._poll = usual
            self.register, self.unregister = usual.register, usual.unregister

        def poll(self, milliseconds: int) -> object:
            if session.inbox.qsize() == 1 and not between.is_set():
                between.set()
                send(2)
                arrived(engine, 2)
                time.sleep(0.05)  # For the answer; without it nothing would be told too early.
                send(3)
            return self._poll.poll(milliseconds)

    monkeypatch.setattr(session, "_poller", Poll(session._poller))
    session.send(opening.session, Progress(1, 0))
    assert between.wait(SECONDS)
    assert [number(session.inbox.get(timeout=SECONDS).message) for _ in "12"] == [10, 20]


def test_a_message_leaves_while_the_other_thread_is_busy(
    start: Start, session: CoreSession
) -> None:
    busy, free = threading.Event(), threading.Event()

    def aside(heard: Heard) -> bool:
        if not heard.first:
            busy.set()
            free.wait(SECONDS)
        return False

    session.aside = aside
    engine = start(lambda step: 1 if step == 1 else 0)
    opening = session.inbox.get(timeout=SECONDS)
    try:
        session.send(opening.session, Progress(1, 0))
        assert busy.wait(SECONDS)
        session.send(opening.session, Progress(2, 0))
        assert arrived(engine, 2) == [1, 2]
    finally:
        free.set()


def test_messages_of_both_threads_keep_their_order(start: Start, session: CoreSession) -> None:
    """Each thread's, that is; and a session that is over has nothing said in its name."""
    engine = start(lambda step: int(step < 50_000))
    said = itertools.count(100_001)

    def aside(heard: Heard) -> bool:
        if not heard.first:
            session.send(heard.session, Progress(next(said), 0))
        return False

    session.aside = aside
    opening = session.inbox.get(timeout=SECONDS)
    for step in range(1, 501):
        session.send(opening.session - 1, Progress(50_000 + step, 0))
        session.send(opening.session, Progress(step, 0))
    steps = arrived(engine, 1_000)
    assert [step for step in steps if step < 50_000] == list(range(1, 501))
    assert [step for step in steps if step >= 50_000] == list(range(100_001, 100_501))
