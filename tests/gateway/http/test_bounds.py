"""Bounds that a client meets below the endpoints: heads, trailers, buffers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock_gateway.service import Patience
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(300)

BOUND = 4096
SOCKET_BUFFERS = 20_000_000
"""Bytes that the kernel holds of one connection on the loopback, generously."""
Start = Callable[..., LiveGateway]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(engine: FakeEngineClient, **keywords: Any) -> LiveGateway:
            return stack.enter_context(LiveGateway(engine, **keywords))

        yield start


def small(start: Start) -> LiveGateway:
    return start(FakeEngineClient(), config=GatewayConfig(max_header_bytes=BOUND))


def send(gateway: LiveGateway, data: bytes) -> bytes:
    """What is answered; empty where the connection was reset with the answer unread."""
    with gateway.connect() as connection:
        try:
            connection.socket.sendall(data)
            return connection.read_all()
        except ConnectionError:
            return b""


def request(*headers: str, target: str = "/version") -> bytes:
    head = [f"GET {target} HTTP/1.1", "host: g", "connection: close", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    "large",
    [
        request("x: " + "y" * BOUND),
        request(*(f"x{i}: y" for i in range(BOUND // 6))),
        request(target="/version?" + "q" * BOUND),
        request("x: " + "y" * 3 * BOUND),
        request("x: " + "y" * 40 * BOUND),
    ],
    ids=["value", "many", "target", "thrice", "forty times"],
)
def test_a_head_beyond_the_bound_is_a_431(start: Start, large: bytes) -> None:
    """Also one that comes whole, in one piece, and that the parser would take."""
    answer = send(small(start), large)
    if not answer and len(large) > 10 * BOUND:
        return  # Cut while there was more to come, and the answer was lost with what was unread.
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431")
    assert json.loads(body)["error"]["code"] == "head_too_large"
    assert str(BOUND) in json.loads(body)["error"]["message"]


def test_a_head_within_the_bound_is_served(start: Start) -> None:
    for fill in (0, BOUND - 200):
        assert send(small(start), request("x: " + "y" * fill)).startswith(b"HTTP/1.1 200")


def test_the_default_takes_what_browsers_send(start: Start) -> None:
    gateway = start(FakeEngineClient())
    assert send(gateway, request("cookie: " + "y" * 50_000)).startswith(b"HTTP/1.1 200")
    assert send(gateway, request("cookie: " + "y" * 70_000)).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("line", [b"y" * 512, b"x: yyyyyyyyyyyyyyy\r\n" * 25])
def test_trailers_that_do_not_end_are_cut(start: Start, line: bytes) -> None:
    gateway = small(start)
    with gateway.connect() as connection:
        connection.socket.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\n"
        )
        sent = 0
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(2000):
                connection.socket.sendall(line)
                sent += len(line)
                gateway.turn()  # Sent is read: no buffer between hides when it is cut.
        assert sent < 1_000_000


def test_a_long_body_in_small_pieces_is_no_head(start: Start) -> None:
    """Each chunk's length line is overhead, and is not added up."""
    gateway = small(start)
    body = json.dumps({"prompt": "x", "user": "y" * 3000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nconnection: close\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    assert send(gateway, head + chunks).startswith(b"HTTP/1.1 200")


def test_requests_sent_ahead_are_served_in_turn(start: Start) -> None:
    """What waits for its turn is not a head that doesn't end."""
    gateway = small(start)
    each = b"GET /version HTTP/1.1\r\nhost: g\r\nx: " + b"y" * 2000 + b"\r\n\r\n"
    last = request("x: " + "y" * 2000)
    assert send(gateway, each * 9 + last).count(b"HTTP/1.1 200") == 10


def memory() -> int:
    """Resident bytes of this process, the gateway being a thread of it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_slow_readers_cost_no_memory_and_are_cut(start: Start) -> None:
    """Twenty clients ask for endless answers and read nothing. What waits for each is bounded by
    its socket's buffers, however much the engine would produce: nothing more is even taken from
    the engine, which the pressure reaches."""
    produced, most = 0, 0

    def flood(prompt: Any, params: Any) -> Iterator[Any]:
        nonlocal produced
        while True:
            produced += 100_000
            yield [SequenceDelta(index=0, text="x" * 100_000, token_ids=[65])]

    engine = FakeEngineClient(flood)
    gateway = start(engine, patience=Patience(reader=2.0))
    body = json.dumps({"prompt": "x", "stream": True}).encode()
    with ExitStack() as stack:
        connections = [stack.enter_context(gateway.connect()) for _ in range(20)]
        before = memory()
        for connection in connections:
            connection.post("/v1/completions", body)
        deadline = time.monotonic() + 60
        while (
            sum(g.aborted.is_set() for g in engine.generations) < 20
            or gateway.service.open_requests
        ):
            if time.monotonic() >= deadline:
                raise TimeoutError
            assert produced < 20 * SOCKET_BUFFERS, "more than the sockets take"
            most = max(most, memory() - before)
            time.sleep(0.01)
        print(f"{produced:,} bytes, {most:,} of memory")
        assert most < 64 * 1024 * 1024
