"""WebSockets' handshakes and frames that no client of good will sends."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from penstock.config.settings import GatewayConfig
from penstock_gateway.http.socket_protocol import SLICE
from penstock_gateway.service import Patience
from tests.gateway.live_gateway import Connection, LiveGateway
from tests.gateway.realtime.hearing import Listener

pytestmark = pytest.mark.timeout(120)

TEXT, CONTINUED, PING = 1, 0, 9


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with LiveGateway(Listener(), patience=Patience(reader=0.5)) as found:
        yield found


def shake(gateway: LiveGateway, *headers: bytes, path: bytes = b"/v1/realtime") -> Connection:
    """A client's half of a handshake."""
    connection = gateway.connect()
    lines = [
        b"GET %b HTTP/1.1" % path,
        b"host: localhost",
        b"connection: upgrade",
        b"upgrade: websocket",
        b"sec-websocket-version: 13",
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        *headers,
    ]
    connection.socket.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
    return connection


def frame(kind: int, payload: bytes, *, final: bool = True) -> bytes:
    """A frame of less than 126 bytes, under a mask of zeros."""
    return bytes([kind | (128 if final else 0), 128 | len(payload)]) + bytes(4) + payload


def test_so_many_may_be_open(gateway: LiveGateway) -> None:
    """There is a bound for a tenant, wherever its key is sent, and one for all; whoever goes makes
    room."""
    config = GatewayConfig(max_realtime_connections=2, max_realtime_tenant_connections=1)
    alice, carol = b"x-api-key: a", b"authorization: Bearer c"
    bob = b"sec-websocket-protocol: realtime, openai-insecure-api-key.b"
    with LiveGateway(Listener(), config) as bounded, ExitStack() as stack:
        for who in (alice, bob):
            stack.enter_context(shake(bounded, who)).read_until(b"session.created")
        with shake(bounded, carol) as connection:
            answer = connection.read_all()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"--max-realtime-connections" in answer
            assert b"retry-after: " in answer.lower()
        with shake(bounded, bob) as connection:
            answer = connection.read_all()
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b"--max-realtime-tenant-connections" in answer
        assert bounded.service.connections.open == 2
        stack.close()
        while bounded.service.connections.open:
            bounded.turn()
        with shake(bounded, carol) as connection:
            connection.read_until(b"session.created")


def test_a_path_without_a_websocket_says_so(gateway: LiveGateway) -> None:
    with shake(gateway, path=b"/v1/elsewhere") as connection:
        answer = connection.read_all()
    assert answer.startswith(b"HTTP/1.1 404 "), answer
    assert b"there is no WebSocket at /v1/elsewhere" in answer


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ([b"x-long: " + b"y" * 10_000], 431, b"head_too_large"),
        ([b"content-length: 5"], 400, b"has no body"),
        ([b"x-%d: 1" % n for n in range(200)], 431, b"head_too_large"),
        ([b"sec-websocket-protocol: \xff"], 400, b"invalid_http"),
        ([b"origin: http://["], 403, b"origin_not_allowed"),
    ],
    ids=["long", "body", "many", "bytes", "origin"],
)
def test_handshakes_that_are_no_good_are_answered(
    gateway: LiveGateway,
    headers: list[bytes],
    status: int,
    code: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR), shake(gateway, *headers) as connection:
        answer = connection.read_all()
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert code in answer
        gateway.turn()
    assert caplog.records == []


def test_who_sends_pings_and_reads_nothing_is_cut(gateway: LiveGateway) -> None:
    """And is kept no pongs meanwhile."""
    with shake(gateway) as connection:
        connection.read_until(b"session.created")
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.socket.settimeout(5)
        before = most_memory()
        with pytest.raises(OSError, match=r"reset|pipe"):
            send_pings(connection)
        assert most_memory() - before < 50 << 20


@pytest.mark.parametrize(
    ("sent", "answer"),
    [(frame(PING, b""), b"\x8a\0"), (frame(TEXT, b"x"), b'"type":"error"')],
    ids=["pings", "texts"],
)
def test_many_short_frames_are_read_in_turns(
    gateway: LiveGateway, sent: bytes, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames come together: whoever else is served waits for some of them, not for all."""
    count = 20_000
    read_in_turn: Counter[int] = Counter()
    turns = 0
    read = WebSocketsSansIOProtocol.data_received

    def reading(protocol: WebSocketsSansIOProtocol, data: bytes) -> None:
        read_in_turn[turns] += len(data)
        read(protocol, data)

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(WebSocketsSansIOProtocol, "data_received", reading)
    with shake(gateway) as connection:
        connection.read_until(b"session.created")
        counting = asyncio.run_coroutine_threadsafe(turning(), gateway.loop)
        sender = threading.Thread(target=connection.socket.sendall, args=(sent * count,))
        sender.start()
        answered, left = 0, b""
        while answered < count:
            data = left + connection.socket.recv(1 << 20)
            answered += data.count(answer)
            left = data[1 + data.rfind(answer) :][-len(answer) + 1 :]
        sender.join()
        counting.cancel()
    assert sum(read_in_turn.values()) >= count * len(sent)
    assert max(read_in_turn.values()) <= SLICE


def send_pings(connection: Connection) -> None:
    """Two gigabytes, or what is taken."""
    pings = frame(PING, bytes(125)) * 1000
    for _ in range(20_000):
        connection.socket.sendall(pings)


def most_memory() -> int:
    """Most memory that this process has had, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_a_message_has_so_many_frames_at_most(gateway: LiveGateway) -> None:
    with shake(gateway) as connection:
        connection.read_until(b"session.created")
        connection.socket.sendall(frame(TEXT, b"{", final=False))
        connection.socket.sendall(frame(CONTINUED, b"", final=False) * 2000)
        assert b"more than 1024 frames" in connection.read_all()
