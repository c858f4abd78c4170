"""Requests that are too large, too slow or none, as they come from a socket."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.service import Patience
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.gateway.http.scripts import CHAT, SOON, body, trickle
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("chunked", [False, True])
def test_body_too_large(start: Callable[..., LiveGateway], chunked: bool) -> None:
    engine = FakeEngineClient()
    gateway = start(engine, config=GatewayConfig(max_body_bytes=10_000))
    with gateway.connect() as connection:
        if chunked:
            connection.socket.sendall(
                f"POST {CHAT} HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n".encode()
            )
            for _ in range(20):
                connection.socket.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
            connection.socket.sendall(b"0\r\n\r\n")
        else:
            connection.post(CHAT, b" " * 10_001)
        head, _, data = connection.read_all().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413")
    assert b"x-request-id: " in head
    error = json.loads(data)["error"]
    assert error["code"] == "request_too_large"
    assert "10000" in error["message"]
    assert engine.submitted == []


def test_body_at_the_limit(start: Callable[..., LiveGateway]) -> None:
    gateway = start(FakeEngineClient(), config=GatewayConfig(max_body_bytes=10_000))
    with gateway.connect() as connection:
        connection.post(CHAT, body().ljust(10_000), "connection: close")
        assert connection.read_all().startswith(b"HTTP/1.1 200")


def test_declared_too_large_is_refused_before_it_is_sent(
    start: Callable[..., LiveGateway],
) -> None:
    gateway = start(FakeEngineClient(), config=GatewayConfig(max_body_bytes=10_000))
    with gateway.connect() as connection:
        connection.socket.sendall(
            f"POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: 99999999999999999999\r\n"
            "expect: 100-continue\r\n\r\n".encode()
        )
        answer = connection.read_all()
    # httptools' parser refuses a length that no machine word holds.
    assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
    assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])


def test_body_that_never_comes(start: Callable[..., LiveGateway]) -> None:
    gateway = start(FakeEngineClient(), patience=Patience(body=0.2))
    with gateway.connect() as connection:
        connection.socket.sendall(
            f"POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: 100\r\n\r\n{{".encode()
        )
        head, _, data = connection.read_all().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert json.loads(data)["error"]["code"] == "request_timeout"


@pytest.mark.parametrize("sent", [b"", b"GET /vers", b"GET /version HTTP/1.1\r\nhost: g\r\n"])
def test_head_that_never_ends(start: Callable[..., LiveGateway], sent: bytes) -> None:
    gateway = start(FakeEngineClient(), patience=Patience(head=0.2))
    with gateway.connect() as connection:
        connection.socket.sendall(sent)
        begun = time.monotonic()
        try:
            assert connection.read_all() == b""
        except ConnectionResetError:
            pass
        assert time.monotonic() - begun < SOON


def test_trickled_head_does_not_buy_time(start: Callable[..., LiveGateway]) -> None:
    gateway = start(FakeEngineClient(), patience=Patience(head=0.3))
    with gateway.connect() as connection:
        begun = time.monotonic()
        with pytest.raises(ConnectionError):
            trickle(connection, b"GET /version HTTP/1.1\r\nx: " + b"y" * 10_000)
        assert time.monotonic() - begun < SOON


def test_head_is_not_timed_between_requests(start: Callable[..., LiveGateway]) -> None:
    gateway = start(FakeEngineClient(), patience=Patience(head=0.2))
    asked = b"GET /version HTTP/1.1\r\nhost: g\r\n\r\n"
    with gateway.held():
        connection = gateway.connect()
        connection.socket.sendall(asked)
    with connection:
        assert b"200 OK" in connection.read_until(b"}")
        for _ in range(2):
            time.sleep(0.4)
            connection.socket.sendall(asked)
            assert b"200 OK" in connection.read_until(b"}")


def test_head_too_large(start: Callable[..., LiveGateway]) -> None:
    gateway = start(FakeEngineClient())
    with gateway.connect() as connection:
        connection.socket.sendall(b"GET /version HTTP/1.1\r\nx: ")
        answer = b""
        try:
            for _ in range(40):
                connection.socket.sendall(b"y" * 4096)
                time.sleep(0.005)
        except ConnectionError:
            pass
        try:
            answer = connection.read_all()
        except ConnectionError:
            return  # cut; the answer was lost with what was still unread
        assert answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
        assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])


def test_not_http(start: Callable[..., LiveGateway]) -> None:
    gateway = start(FakeEngineClient())
    with gateway.connect() as connection:
        connection.socket.sendall(b"\x16\x03\x01\x02\x00\r\n\r\n")
        head, _, data = connection.read_all().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert set(json.loads(data)["error"]) == {"message", "type", "param", "code"}


def test_several_requests_on_one_connection(start: Callable[..., LiveGateway]) -> None:
    gateway = start(FakeEngineClient(say("a")))
    with gateway.connect() as connection:
        for stream in (True, False, True):
            connection.post(CHAT, body(stream=stream))
            end = b"[DONE]\n\n\r\n0\r\n\r\n" if stream else b'"}'
            answer = connection.read_until(end)
            assert b"200 OK" in answer
        connection.post(CHAT, b"{")
        assert b"HTTP/1.1 400" in connection.read_until(b"}}")
        connection.socket.sendall(b"GET /health/live HTTP/1.1\r\nhost: g\r\n\r\n")
        assert b"200 OK" in connection.read_until(b"}")
