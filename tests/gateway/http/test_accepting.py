"""More connections than a gateway has file descriptors for: who is served, who is told, and what is
logged. A process of its own has the limit."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.net import listener
from penstock.process import logs
from penstock_gateway.http import accepting
from penstock_gateway.http.accepting import A_TURN
from penstock_gateway.service import Patience
from testing.serving import PATIENCE, wait_until
from tests.gateway.certificates import make_certificate
from tests.gateway.fake_engine import FakeGeneration
from tests.gateway.live_gateway import Connection, LiveGateway
from tests.gateway.media import SeeingEngine
from tests.gateway.realtime.hearing import Listener
from tests.gateway.realtime.test_bounds import shake

pytestmark = pytest.mark.timeout(120)

LIMIT = 64
RESERVE = LIMIT // 4
COMPLETION = json.dumps({"prompt": "x", "stream": True}).encode()
FULL = "connections hold nearly all file descriptors"
LOOPS = ["uvloop", "asyncio"]


def endless(prompt: Any, params: Any) -> Iterator[Any]:
    while True:
        yield 0.02
        yield [SequenceDelta(index=0, text="a", token_ids=[97])]


class Endless(Listener):
    """Hears, and goes on writing."""

    def __init__(self) -> None:
        super().__init__()
        self.script = endless

    async def submit(self, *given: Any, **named: Any) -> FakeGeneration:
        return await SeeingEngine.submit(self, *given, **named)


def gateway_of(loop: str, *tls: str) -> LiveGateway:
    config = GatewayConfig(ssl_certfile=tls[0], ssl_keyfile=tls[1]) if tls else None
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if loop == "uvloop":
        import uvloop

        new_loop = uvloop.new_event_loop
    return LiveGateway(Endless(), config, Patience(head=60.0), new_loop)


def run() -> None:
    """The process: one gateway after the other, and descriptors that it takes and gives back when
    it is told to."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    logs.setup("gateway 0")
    held: list[int] = []
    with ExitStack() as stack:
        for line in sys.stdin:
            told, *arguments = line.split()
            if told == "start":
                print(stack.enter_context(gateway_of(*arguments)).port, flush=True)
                continue
            if told == "share":
                accepting.OTHERS_TURN = float(arguments[1])
                shared = socket.socket(fileno=int(arguments[0]))
                gateway = LiveGateway(Endless(), None, Patience(head=60.0), shared=shared)
                print(stack.enter_context(gateway).port, flush=True)
                continue
            if told == "leave":
                stack.close()
            if told == "take":
                try:
                    while True:
                        held.append(os.dup(0))
                except OSError:
                    pass
            while told == "give" and held:
                os.close(held.pop())
            print("done", flush=True)


class Limited:
    """A process of limited files, and what it logs of the gateway that runs."""

    port = 0

    def __init__(self, *shared: socket.socket) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import run; run()"],
            pass_fds=[each.fileno() for each in shared],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.lines.append(line)

    def tell(self, *words: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def start(self, *arguments: str) -> Limited:
        self.lines.clear()
        self.port = int(self.tell("start", *arguments))
        return self

    def connect(self) -> Connection:
        return Connection(self.port)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def warnings(self) -> list[str]:
        return [line for line in self.lines if " level=info " not in line]


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    found = Limited()
    yield found
    found.process.kill()
    found.process.communicate()


@pytest.fixture
def start(limited: Limited) -> Iterator[Callable[..., Limited]]:
    yield limited.start
    limited.tell("leave")


@pytest.fixture
def sharing() -> Iterator[Callable[[float], tuple[Limited, socket.socket]]]:
    """A process that shares a socket with others, who have so many seconds where it is full."""
    with ExitStack() as stack:

        def share(turn: float) -> tuple[Limited, socket.socket]:
            shared = stack.enter_context(listener.bind("127.0.0.1", 0))
            found = Limited(shared)
            stack.callback(found.process.communicate)
            stack.callback(found.process.kill)
            found.port = int(found.tell("share", str(shared.fileno()), str(turn)))
            return found, shared

        yield share


def ask(connection: Connection) -> None:
    connection.socket.sendall(b"GET /health/live HTTP/1.1\r\nhost: g\r\n\r\n")


def is_open(connection: Connection) -> bool:
    if not select.select([connection.socket], [], [], 0)[0]:
        return True
    try:
        return connection.socket.recv(1, socket.MSG_PEEK) != b""
    except ConnectionError:
        return False


def served(gateway: Limited) -> bytes:
    """The answer to a client who comes back until it is served."""
    answer = b""

    def is_served() -> bool:
        nonlocal answer
        with gateway.connect() as connection:
            ask(connection)
            answer = connection.read_until(b"}")
        return answer.startswith(b"HTTP/1.1 200 ")

    wait_until(is_served, message=lambda: repr(answer))
    return answer


@pytest.mark.parametrize("loop", LOOPS)
def test_every_client_is_served_or_told_and_streams_go_on(
    start: Callable[..., Limited], loop: str
) -> None:
    gateway = start(loop)
    with ExitStack() as stack:
        spoken = stack.enter_context(shake(gateway))  # type: ignore[arg-type]
        spoken.read_until(b"session.created")
        asking = [stack.enter_context(gateway.connect()) for _ in range(LIMIT)]
        streams = []
        for client in asking:
            client.post("/v1/completions", COMPLETION)
        for client in asking:
            answer = client.read_until(b"}")
            if answer.startswith(b"HTTP/1.1 200 "):
                streams.append(client)
                continue
            head, _, _ = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"\r\nretry-after: 1\r\n" in head
            assert b"\r\nconnection: close" in head
            assert b'"code":"too_many_connections"' in answer
            client.socket.close()
        assert RESERVE < len(streams) < LIMIT - RESERVE
        assert gateway.descriptors() <= LIMIT - RESERVE // 2
        while len(streams) > 5:
            streams.pop().socket.close()
        served(gateway)

        # Whoever comes later takes the place of who has been idle longest, and of nobody else.
        idle = [stack.enter_context(gateway.connect()) for _ in range(LIMIT)]
        for client in idle:
            ask(client)
        answers = [client.read_until(b"}") for client in idle]
        kept = [
            client
            for client, answer in zip(idle, answers, strict=True)
            if answer.startswith(b"HTTP/1.1 200 ")
        ]
        assert len(kept) > RESERVE
        served(gateway)
        wait_until(lambda: not is_open(kept[0]))
        assert is_open(kept[-1])
        assert is_open(spoken)
        for stream in streams:
            stream.read_until(b"data: ")
            stream.read_until(b"data: ")
    assert [FULL in line for line in gateway.warnings()] == [True], gateway.lines


@pytest.mark.parametrize("loop", LOOPS)
def test_silent_connections_keep_nobody_out(start: Callable[..., Limited], loop: str) -> None:
    gateway = start(loop)
    with ExitStack() as stack:
        for _ in range(2 * LIMIT):
            stack.enter_context(gateway.connect())
        served(gateway)
        wait_until(lambda: gateway.descriptors() <= LIMIT - RESERVE // 2)
    assert [FULL in line for line in gateway.warnings()] == [True], gateway.lines


def test_silent_connections_keep_nobody_out_of_https(
    start: Callable[..., Limited], tmp_path: Path
) -> None:
    """Before keys are agreed on, too: nothing is known of such a connection but its number."""
    files = make_certificate(tmp_path, "gateway")
    gateway = start("uvloop", *files)
    context = ssl.create_default_context(cafile=files[0])

    def speak() -> bytes:
        try:
            with (
                socket.create_connection(("127.0.0.1", gateway.port), PATIENCE) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as connection,
            ):
                connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: g\r\n\r\n")
                return connection.recv(12)
        except OSError:
            return b""

    with ExitStack() as stack:
        for _ in range(2 * LIMIT):
            stack.enter_context(gateway.connect())
        wait_until(lambda: gateway.descriptors() > LIMIT - RESERVE)
        # One that is accepted to be closed counts for a moment.
        wait_until(lambda: gateway.descriptors() <= LIMIT - RESERVE // 2)
        wait_until(lambda: speak() == b"HTTP/1.1 200")
    assert [FULL in line for line in gateway.warnings()] == [True], gateway.lines


@pytest.mark.parametrize("loop", LOOPS)
def test_no_descriptor_at_all_is_one_line_and_no_end(
    start: Callable[..., Limited], loop: str
) -> None:
    """Something else has taken them, the reserve too: connections wait in the kernel."""
    gateway = start(loop)
    with gateway.connect() as stream, ExitStack() as stack:
        stream.post("/v1/completions", COMPLETION)
        stream.read_until(b"data: ")
        gateway.tell("take")
        waiting = [stack.enter_context(gateway.connect()) for _ in range(2 * A_TURN)]
        for connection in waiting:
            ask(connection)
        wait_until(lambda: any(FULL in line for line in gateway.lines))
        stream.read_until(b"data: ")
        stream.read_until(b"data: ")
        gateway.tell("give")
        for connection in waiting:
            assert connection.read_until(b"}").startswith(b"HTTP/1.1 200 ")
    assert [FULL in line for line in gateway.warnings()] == [True], gateway.lines


def test_one_without_room_leaves_connections_to_the_others(
    sharing: Callable[[float], tuple[Limited, socket.socket]],
) -> None:
    """To one that has room, here, however long that takes."""
    full, shared = sharing(PATIENCE)
    with ExitStack() as stack:
        streams = [stack.enter_context(full.connect()) for _ in range(LIMIT)]
        for client in streams:
            client.post("/v1/completions", COMPLETION)
        wait_until(lambda: full.descriptors() >= LIMIT - RESERVE)
        stack.enter_context(LiveGateway(Endless(), None, Patience(head=60.0), shared=shared))
        streams += [stack.enter_context(full.connect()) for _ in range(LIMIT)]
        for client in streams[LIMIT:]:
            client.post("/v1/completions", COMPLETION)
        for client in streams:
            assert client.read_until(b"data: ").startswith(b"HTTP/1.1 200 ")
        for client in streams:
            client.socket.close()
    assert full.warnings() == []


def test_where_all_are_full_clients_are_told(
    sharing: Callable[[float], tuple[Limited, socket.socket]],
) -> None:
    full, _ = sharing(0.05)
    with ExitStack() as stack:
        clients = [stack.enter_context(full.connect()) for _ in range(LIMIT)]
        answers = []
        for client in clients:
            client.post("/v1/completions", COMPLETION)
        for client in clients:
            answers.append(client.read_until(b"}").split(b" ")[1])
        assert set(answers) == {b"200", b"503"}
        assert answers.count(b"200") > RESERVE
        for client in clients:
            client.socket.close()
    assert [FULL in line for line in full.warnings()] == [True], full.lines
