"""WebSockets' handshakes and frames that no client of good will sends."""

from __future__ import annotations

import logging
import resource
import socket
from collections.abc import Iterator

import pytest

from penstock_gateway.service import Patience
from tests.gateway.live_gateway import Connection, LiveGateway
from tests.gateway.realtime.hearing import Listener

pytestmark = pytest.mark.timeout(120)

TEXT, CONTINUED, PING = 1, 0, 9


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with LiveGateway(Listener(), patience=Patience(reader=0.5)) as found:
        yield found


def shake(gateway: LiveGateway, *headers: bytes) -> Connection:
    """A client's half of a handshake."""
    connection = gateway.connect()
    lines = [
        b"GET /v1/realtime HTTP/1.1",
        b"host: gateway",
        b"connection: upgrade",
        b"upgrade: websocket",
        b"sec-websocket-version: 13",
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        *headers,
    ]
    connection.socket.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
    return connection


def frame(kind: int, payload: bytes, *, final: bool = True) -> bytes:
    """Of less than 126 bytes, under a mask of zeros."""
    return bytes([kind | (128 if final else 0), 128 | len(payload)]) + bytes(4) + payload


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ([b"x-long: " + b"y" * 10_000], 431, b"head_too_large"),
        ([b"x-%d: 1" % n for n in range(200)], 431, b"head_too_large"),
        ([b"sec-websocket-protocol: \xff"], 400, b"invalid_http"),
        ([b"origin: http://["], 403, b"origin_not_allowed"),
    ],
    ids=["long", "many", "bytes", "origin"],
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
        pings = frame(PING, bytes(125)) * 1000
        before = most_memory()
        with pytest.raises(OSError, match=r"reset|pipe"):
            for _ in range(20_000):
                connection.socket.sendall(pings)
        assert most_memory() - before < 50 << 20


def most_memory() -> int:
    """Of this process, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_a_message_has_so_many_frames_at_most(gateway: LiveGateway) -> None:
    with shake(gateway) as connection:
        connection.read_until(b"session.created")
        connection.socket.sendall(frame(TEXT, b"{", final=False))
        connection.socket.sendall(frame(CONTINUED, b"", final=False) * 2000)
        assert b"more than 1024 frames" in connection.read_all()
