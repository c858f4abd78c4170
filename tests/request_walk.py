"""Counts the calls, functions and product modules through which one plain streamed chat request
walks.

A system runs in this process, over real sockets, a thread for each of its three parts: the
gateway's application with its engine client, the engine core's loop, and a worker with the default
model. One request warms everything up; the next ones are watched with `sys.setprofile`, and of each
part the one counts that made the fewest calls: in the others' turns something else was due, such as
a status. A coroutine or a generator that goes on is a call. A module counts once a function of it
is entered. What runs when a module is imported doesn't count, and neither does code that
dataclasses generate. Other processes, such as
the one that renders chat templates, aren't seen.

- gateway: in the request's own context, from the ASGI call until its Submit is on the socket.
- engine core: from the turn that takes the Submit until the first Plan with it is on the socket.
- worker: from a Plan that is one decode until its Result is given to the session.
- decode turn of the engine core: a turn of its loop that takes such a Result and nothing else, and
  sends the next Plan; from the sockets' messages to the sockets.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import msgspec
import zmq

from penstock.client import EngineClient
from penstock.config.settings import EngineConfig, GatewayConfig, TransportSettings
from penstock.prepare import prepare
from penstock.protocol.from_frontend import FromFrontend, Submit
from penstock.protocol.from_worker import FromWorker, Result
from penstock.protocol.to_worker import Plan, Stop
from penstock.transport.session_client import SessionClient
from penstock.transport.session_server import SessionServer
from penstock_engine.core import EngineCore
from penstock_engine.notes import SleepNote, WeightsNote
from penstock_engine.process import Loop, read_facts
from penstock_gateway.app import create_app
from penstock_worker.engine_session import CoreSession, Heard
from penstock_worker.metrics.phases import UNWATCHED
from penstock_worker.parallel.membership import Membership
from penstock_worker.worker import Worker

PRODUCT = (
    "penstock",
    "penstock_bench",
    "penstock_conversion",
    "penstock_engine",
    "penstock_gateway",
    "penstock_kernels",
    "penstock_planning",
    "penstock_platforms",
    "penstock_ray",
    "penstock_receipts",
    "penstock_rpc",
    "penstock_training",
    "penstock_worker",
)
PATIENCE = 120.0
"""Seconds in which each part must have started, or ended."""
MODEL = "smollm2-135m"
BOOT = b"walkwalk"
WARMING = "What is a penstock?"
QUESTIONS = (
    "Where does the water of a mill go?",
    "Who turns the wheel of a mill?",
    "What does a miller do in winter?",
)

asked: ContextVar[bool] = ContextVar("asked", default=False)
"""Whether what runs was begun by the request that is watched."""


Calls = dict[str, Counter[str]]
"""How often each function was entered, by module."""


class Walk:
    """The functions that were entered while it was open."""

    def __init__(self, seen: Callable[[], bool] = lambda: True) -> None:
        self.entered: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.fewest: Calls = {}
        """Those of the time with the fewest calls, of all that it was open."""
        self.wanted = False
        """Whether the part may begin."""
        self._seen = seen
        self._open = False

    def begin(self) -> None:
        self.entered.clear()
        self._open = True

    def drop(self) -> None:
        """What was entered since `begin` doesn't count."""
        self._open = False

    def end(self) -> None:
        if self._open and not 0 < calls_of(self.fewest) <= calls_of(self.entered):
            self.fewest = dict(self.entered)
        self._open = self.wanted = False

    @property
    def ended(self) -> bool:
        return not self._open and not self.wanted and bool(self.entered)

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """For `sys.setprofile`."""
        if not self._open or event != "call" or not self._seen():
            return
        code = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED or code.co_filename.startswith("<"):
            return  # A module's or a class's body, or what a dataclass generates.
        module = frame.f_globals["__name__"]
        if module.partition(".")[0] in PRODUCT:
            self.entered[module][code.co_qualname] += 1


def calls_of(entered: Calls) -> int:
    return sum(functions.total() for functions in entered.values())


def walks() -> dict[str, Calls]:
    """Returns the functions entered of each part in the request's order."""
    logging.getLogger().addHandler(logging.NullHandler())  # That the parts end is no news.
    with tempfile.TemporaryDirectory(prefix="walk-") as name:
        ends = {part: f"ipc://{name}/{part}" for part in ("frontends", "workers")}
        gateway, engine, worker, turn = Walk(asked.get), Walk(), Walk(), Walk()
        with _engine(engine, turn, prepare(MODEL), ends), _worker(worker, ends["workers"]):
            asyncio.run(_ask(gateway, (engine, worker), ends["frontends"]))
    found = {
        "gateway": gateway,
        "engine core": engine,
        "worker": worker,
        "decode turn of the engine core": turn,
    }
    return {part: walk.fewest for part, walk in found.items()}


async def _ask(gateway: Walk, others: tuple[Walk, ...], endpoint: str) -> None:
    """Asks all questions of a gateway in this thread."""
    client = EngineClient(endpoint, name="walk")
    app = create_app(client, GatewayConfig())
    await client.start()
    transport = httpx.ASGITransport(app)
    send = SessionClient.send

    def sending(self: SessionClient[Any], message: Any, *frames: Any) -> bool:
        sent = send(self, message, *frames)
        if isinstance(message, Submit):
            gateway.end()
        return sent

    SessionClient.send = sending  # type: ignore[method-assign]
    threading.setprofile(gateway.profile)  # Of threads to which it hands work.
    sys.setprofile(gateway.profile)
    try:
        await client.wait_connected(PATIENCE)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            while (await http.get("/health/ready")).status_code != 200:
                await asyncio.sleep(0.01)
            (await http.post("/v1/chat/completions", json=_body(WARMING))).raise_for_status()
            asked.set(True)
            for question in QUESTIONS:
                gateway.begin()
                for walk in others:
                    walk.wanted = True
                answer = await http.post("/v1/chat/completions", json=_body(question))
                answer.raise_for_status()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        SessionClient.send = send  # type: ignore[method-assign]
        app.state.service.close()
        await client.close()


def _body(question: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "max_tokens": 8, "stream": True, "ignore_eos": True}


@contextmanager
def _engine(walk: Walk, turn: Walk, model: Path, ends: dict[str, str]) -> Iterator[None]:
    """An engine core in a thread of its own. walk: of a Submit.  turn: of a Result."""
    facts = read_facts(EngineConfig(), model, boot=BOOT.hex(), created=0)
    signals, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    context = zmq.Context()
    servers: dict[str, SessionServer[Any]] = {
        part: SessionServer(
            context, ends[part], msgspec.msgpack.Decoder(union), TransportSettings(), BOOT, part
        )
        for part, union in (("frontends", FromFrontend), ("workers", FromWorker))
    }
    core = EngineCore(facts)
    notes = SleepNote(None), WeightsNote(None)
    loop = Loop(core, servers["frontends"], servers["workers"], wakeup, 0.0, *notes)
    take, received, send = loop._take_events, core.frontend_received, servers["workers"].send
    taken, wait = core.worker_received, loop._wait
    held = False
    brought: list[Any] = []
    """What the turn that runs has taken and sent."""

    def taking(now: float) -> None:
        if walk.wanted and not held:
            walk.begin()
        brought.clear()
        turn.begin()
        take(now)

    def settling(session: bytes, message: FromWorker, now: float) -> None:
        brought.append(message)
        taken(session, message, now)

    def waiting() -> None:
        decodes = [type(each) for each in brought] == [Result, Plan] and _decodes(brought[1])
        if decodes:
            turn.end()
        turn.drop()
        wait()

    def receiving(session: bytes, message: FromFrontend, now: float) -> None:
        nonlocal held
        brought.append(message)
        held = held or (walk.wanted and isinstance(message, Submit))
        received(session, message, now)

    def sending(session: bytes, message: Any, *frames: Any) -> None:
        send(session, message, *frames)
        brought.append(message)
        if held and isinstance(message, Plan):
            walk.end()

    loop._take_events, loop._wait = taking, waiting  # type: ignore[method-assign]
    core.frontend_received, core.worker_received = receiving, settling  # type: ignore[method-assign]
    servers["workers"].send = sending  # type: ignore[method-assign]
    thread = _started((walk, turn), loop.run)
    try:
        yield
    finally:
        signals.send(b"--")
        thread.join(PATIENCE)
        for server in servers.values():
            server.close()
        context.term()


@contextmanager
def _worker(walk: Walk, endpoint: str) -> Iterator[None]:
    """A worker in a thread of its own, beside its session's."""
    session = CoreSession(endpoint, 0, TransportSettings())
    worker = Worker(session, UNWATCHED, None, Membership("127.0.0.1"))
    take, send = worker._take, session.send
    step: int | None = None

    def taking(heard: Heard, message: Any) -> None:
        nonlocal step
        if walk.wanted and step is None and _decodes(message):
            step = message.step
            walk.begin()
        take(heard, message)

    def sending(number: int, message: Any) -> None:
        send(number, message)
        if isinstance(message, Result) and message.step == step:
            walk.end()

    worker._take, session.send = taking, sending  # type: ignore[method-assign]
    thread = _started((walk,), worker.run)
    session.start()
    try:
        yield
    finally:
        session.inbox.put(Heard(0, Stop()))
        thread.join(PATIENCE)
        worker.close()
        session.close()


def _decodes(message: Any) -> bool:
    """Whether it is a Plan of one token of one sequence that was admitted before."""
    return (
        isinstance(message, Plan)
        and not message.admitted
        and [work.count for work in message.work] == [1]
    )


def _started(walks: Sequence[Walk], run: Callable[[], None]) -> threading.Thread:
    def profile(frame: FrameType, event: str, argument: Any) -> None:
        for walk in walks:
            walk.profile(frame, event, argument)

    def watched() -> None:
        sys.setprofile(profile)
        run()

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    return thread
