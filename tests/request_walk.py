"""Counts the calls, functions and product modules through which one plain streamed chat request
walks.

A system runs in this process, over real sockets, a thread for each of its three parts: the
gateway's HTTP server and application with its engine client, the engine core's loop, and a worker
with the default model. A client of HTTP, in a thread of its own, asks one question that warms
everything up. The next ones are watched with `sys.setprofile`, and of all that a part did for them
the run in the middle counts, by the number of its calls. A coroutine or a generator that goes on is
a call. A module counts once a function of it is entered. What runs when a module is imported
doesn't count, and neither does code that dataclasses generate, nor a library's. Other processes,
such as the one that renders chat templates, aren't seen.

- gateway: in the request's own context, from the socket's first bytes of the request, given to the
  HTTP protocol, until its Submit is on the socket.
- gateway, from the ASGI call: the same without the HTTP server.
- gateway's answer: everything that its thread does from there until the last of 8 tokens and the
  end of the stream are written to the client's socket.
- engine core: from the turn that takes the Submit until the first Plan with it is on the socket.
- worker: from a Plan that is one decode until its Result is given to the session.
- decode turn of the engine core: a turn of its loop that takes such a Result and nothing else, and
  sends the next Plan; from the sockets' messages to the sockets. In many turns it also learns from
  a step's time and from drafts.
- quietest decode turn: the one of them with the fewest calls.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
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
from penstock.net import listener
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
from penstock_gateway.http.server import GatewayServer
from penstock_worker.engine_session import CoreSession, Heard
from penstock_worker.metrics.phases import UNWATCHED
from penstock_worker.parallel.membership import Membership
from penstock_worker.worker import Worker

PRODUCT = (
    "penstock",
    "penstock_bench",
    "penstock_conversion",
    "penstock_dialects",
    "penstock_engine",
    "penstock_families",
    "penstock_gateway",
    "penstock_grammars",
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
    "How old is the oldest mill?",
    "Why do millers sleep so well?",
)

asked: ContextVar[bool] = ContextVar("asked", default=False)
"""Whether what runs was begun by the request that is watched."""


Calls = dict[str, Counter[str]]
"""How often each function was entered, by module."""


class Walk:
    """The functions that were entered while it was open."""

    def __init__(self, seen: Callable[[], bool] = lambda: True) -> None:
        self.entered: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.times: list[Calls] = []
        """Those of each time that it was open."""
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
        if self._open:
            self.times.append({module: Counter(calls) for module, calls in self.entered.items()})
        self._open = self.wanted = False

    @property
    def fewest(self) -> Calls:
        """The time with the fewest calls."""
        return min(self.times, key=calls_of)

    @property
    def middle(self) -> Calls:
        """The time with the median number of calls."""
        most = statistics.median_low(map(calls_of, self.times))
        return next(time for time in self.times if calls_of(time) == most)

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
        gateway, engine, worker, turn = GatewayWalks(), Walk(), Walk(), Walk()
        with _engine(engine, turn, prepare(MODEL), ends), _worker(worker, ends["workers"]):
            asyncio.run(_serve(gateway, (engine, worker), ends["frontends"]))
    found = {
        "gateway": gateway.request,
        "gateway, from the ASGI call": gateway.application,
        "gateway's answer": gateway.answer,
        "engine core": engine,
        "worker": worker,
        "decode turn of the engine core": turn,
    }
    return {part: walk.middle for part, walk in found.items()} | {
        "quietest decode turn": turn.fewest
    }


class GatewayWalks:
    """What a gateway does for a request, and for its answer."""

    def __init__(self) -> None:
        self.request, self.application = Walk(asked.get), Walk(asked.get)
        self.answer = Walk()

    def want(self) -> None:
        """The next request is watched."""
        for walk in (self.request, self.application, self.answer):
            walk.wanted = True

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """For `sys.setprofile`."""
        for walk in (self.request, self.application, self.answer):
            walk.profile(frame, event, argument)

    def submitted(self) -> None:
        if self.request.wanted:
            self.request.end()
            self.application.end()
            self.answer.begin()

    def protocol(self, base: type[Any]) -> type[asyncio.Protocol]:
        """Returns the server's protocol class, which says when bytes come and have been written."""
        walks = self

        class Watched(base):  # type: ignore[misc]
            def data_received(self, data: bytes) -> None:
                if walks.request.wanted and not asked.get():
                    asked.set(True)  # In the context of the connection: its tasks have it, too.
                    walks.request.begin()
                super().data_received(data)

            def on_response_complete(self) -> None:
                super().on_response_complete()
                walks.answer.end()

        return Watched

    def of(self, app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Returns the application, which says when it is called."""

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            if self.application.wanted and asked.get():
                self.application.begin()
            await app(scope, receive, send)

        return watched


async def _serve(gateway: GatewayWalks, others: tuple[Walk, ...], endpoint: str) -> None:
    """Serves all questions in this thread."""
    client = EngineClient(endpoint, name="walk")
    app = create_app(client, GatewayConfig())
    server = GatewayServer(app)
    server.config.http = gateway.protocol(server.config.http)
    server.config.app = gateway.of(app)
    sock = listener.bind("127.0.0.1", 0)
    await client.start()
    send = SessionClient.send

    def sending(self: SessionClient[Any], message: Any, *frames: Any) -> bool:
        sent = send(self, message, *frames)
        if isinstance(message, Submit):
            gateway.submitted()
        return sent

    SessionClient.send = sending  # type: ignore[method-assign]
    threading.setprofile(gateway.profile)  # Of threads to which it hands work.
    sys.setprofile(gateway.profile)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await client.wait_connected(PATIENCE)
        address = listener.url(*listener.reachable_address(sock))
        await asyncio.to_thread(_ask, address, (gateway.want, *(_wanting(walk) for walk in others)))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        SessionClient.send = send  # type: ignore[method-assign]
        server.should_exit = True
        await serving
        app.state.service.close()
        await client.close()


def _wanting(walk: Walk) -> Callable[[], None]:
    return lambda: setattr(walk, "wanted", True)


def _ask(address: str, wants: Sequence[Callable[[], None]]) -> None:
    """Asks all questions, each over a connection of its own. wants: called ahead of each but the
    first."""
    for question in (WARMING, *QUESTIONS):
        with httpx.Client(base_url=address, timeout=PATIENCE) as http:
            while http.get("/health/ready").status_code != 200:
                time.sleep(0.01)
            if question != WARMING:
                for want in wants:
                    want()
            http.post("/v1/chat/completions", json=_body(question)).raise_for_status()


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

    def taking(now: float) -> bool:
        if walk.wanted and not held:
            walk.begin()
        brought.clear()
        turn.begin()
        return take(now)

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
        nonlocal held
        send(session, message, *frames)
        brought.append(message)
        if held and isinstance(message, Plan):
            walk.end()
            held = False

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
        nonlocal step
        send(number, message)
        if isinstance(message, Result) and message.step == step:
            walk.end()
            step = None

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
