"""A gateway that was asked to leave: what it refuses, and what it finishes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.net import listener
from penstock_gateway.app import create_app
from penstock_gateway.http.server import GatewayServer
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.live_gateway import LiveGateway

CHAT = "/v1/chat/completions"


def body(stream: bool) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": stream}).encode()


@pytest.fixture
def go_on() -> threading.Event:
    """Until it is set, every request stands still after its first token."""
    return threading.Event()


@pytest.fixture
def start(go_on: threading.Event) -> Iterator[Callable[..., LiveGateway]]:
    opened: list[LiveGateway] = []

    def script(prompt, params):
        """Says "a", is silent until it may go on, says "b"."""
        yield [SequenceDelta(index=0, text="a", token_ids=[97])]
        while not go_on.is_set():
            yield 0.01
        yield [SequenceDelta(index=0, text="b", token_ids=[98], finish_reason="stop")]

    def start(**settings: float) -> LiveGateway:
        gateway = LiveGateway(FakeEngineClient(script), config=GatewayConfig(**settings))
        opened.append(gateway.__enter__())
        return gateway

    yield start
    go_on.set()
    for gateway in opened:
        gateway.__exit__(None, None, None)


def get(gateway: LiveGateway, path: str) -> bytes:
    with gateway.connect() as connection:
        connection.socket.sendall(
            f"GET {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n".encode()
        )
        return connection.read_all()


def test_new_work_is_refused_while_a_stream_goes_on(
    start: Callable[..., LiveGateway], go_on: threading.Event
) -> None:
    gateway = start(shutdown_timeout=600)
    with gateway.connect() as old, gateway.connect() as kept:
        kept.socket.sendall(b"GET /health/live HTTP/1.1\r\nhost: g\r\n\r\n")
        kept.read_until(b"}")
        old.post(CHAT, body(stream=True))
        old.read_until(b'"a"')
        gateway.leave()
        assert get(gateway, "/health/live").startswith(b"HTTP/1.1 200")
        for path in ("/health/ready", "/health"):
            unready = get(gateway, path).lower()
            assert unready.startswith(b"http/1.1 503")
            assert b"retry-after: 1" in unready
        # Over a new connection, and over one that was kept open.
        with gateway.connect() as fresh:
            for connection in (fresh, kept):
                connection.post(CHAT, body(stream=False))
                head, _, data = connection.read_all().partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503")
                assert b"retry-after: 1" in head.lower()
                assert b"connection: close" in head.lower()
                assert json.loads(data)["error"]["code"] == "shutting_down"
        go_on.set()
        rest = old.read_all()
    assert b'"b"' in rest
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert len(gateway.engine.submitted) == 1


def test_a_second_signal_ends_the_wait(start: Callable[..., LiveGateway]) -> None:
    gateway = start(shutdown_timeout=600)
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=False))
        while not gateway.engine.generations:
            time.sleep(0.01)
        gateway.leave()
        gateway.leave()
        answer = connection.read_all()
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"shutting_down" in answer


def test_handing_over_closes_the_door_and_finishes(
    start: Callable[..., LiveGateway], go_on: threading.Event
) -> None:
    gateway = start(shutdown_timeout=600)
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=True))
        connection.read_until(b'"a"')
        gateway.leave(signal.SIGUSR2)

        def refused() -> bool:
            try:
                with gateway.connect() as other:
                    other.socket.sendall(b"GET /health/live HTTP/1.1\r\nhost: g\r\n\r\n")
                    return not other.socket.recv(10)
            except OSError:
                return True

        while not refused():
            time.sleep(0.01)
        go_on.set()
        rest = connection.read_all()
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2])
async def test_one_that_waits_for_its_first_session_leaves_on_a_signal(signum: int) -> None:
    waiting = asyncio.Event()

    async def first() -> None:
        waiting.set()
        await asyncio.Event().wait()

    app = create_app(FakeEngineClient(), GatewayConfig())  # type: ignore[arg-type]
    server = GatewayServer(app, first=first)
    with listener.bind("127.0.0.1", 0) as sock:
        address = sock.getsockname()
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        await waiting.wait()
        os.kill(os.getpid(), signum)
        await serving
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
    app.state.service.close()
