"""The HTTP server of /metrics and the health checks: answers, bounds, and who is let in."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from penstock.errors import StartupError
from penstock.metrics import port as module
from penstock.metrics.port import MAX_CONNECTIONS, MAX_HEAD_BYTES, Reply, bind, health_page, serving

REASONS: dict[str, str | None] = {"reason": None}


def broken() -> Reply:
    raise RuntimeError("a page that fails")


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(module, "PATIENCE", 1000.0)
    pages = {
        "/metrics": lambda: Reply(200, b"x 1\n" * 100_000, "text/plain"),
        "/health/ready": health_page(lambda: REASONS["reason"]),
        "/broken": broken,
    }
    sock = bind("127.0.0.1", 0, "--x-port")
    with serving(sock, pages):
        yield sock.getsockname()


def url(address: tuple[str, int], path: str) -> str:
    return f"http://{address[0]}:{address[1]}{path}"


def get(of: str) -> httpx.Response:
    return httpx.get(of, timeout=60)


def raw(address: tuple[str, int], data: bytes) -> bytes:
    """All that comes back."""
    with socket.create_connection(address, 60) as sock:
        sock.sendall(data)
        answer = b""
        while piece := sock.recv(65_536):
            answer += piece
        return answer


def test_pages_and_health(address: tuple[str, int]) -> None:
    assert get(url(address, "/metrics?name=x")).text == "x 1\n" * 100_000
    good = get(url(address, "/health/ready"))
    assert (good.status_code, good.json()) == (
        200,
        {
            "ok": True,
            "reason": "",
            "pid": os.getpid(),
            "status": "ok",
        },
    )
    REASONS["reason"] = "it is ill"
    try:
        bad = get(url(address, "/health/ready"))
    finally:
        REASONS["reason"] = None
    assert (bad.status_code, bad.json()["ok"], bad.json()["reason"]) == (503, False, "it is ill")
    assert get(url(address, "/")).status_code == 404
    assert get(url(address, "/broken")).status_code == 500
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        refused = httpx.request(method, url(address, "/metrics"), content=b"x" * 10_000, timeout=60)
        assert refused.status_code == 405
        assert refused.headers["allow"] == "GET"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"GET /m\xff HTTP/1.1\r\n\r\n", 404),
        (b"GET /health/ready HTTP/1.0\r\n\r\n", 200),
        (b"GET /" + b"x" * (MAX_HEAD_BYTES + 5000), 431),
    ],
)
def test_what_is_no_request(address: tuple[str, int], data: bytes, status: int) -> None:
    assert raw(address, data).split(b" ", 2)[1] == str(status).encode()
    assert get(url(address, "/health/ready")).status_code == 200


def test_a_head_that_trickles_in_has_its_time(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.5)
    until = time.monotonic() + 60
    with socket.create_connection(address, 60) as sock:
        sock.settimeout(0.1)
        answer = b""
        while not answer:
            sock.sendall(b"a")
            try:
                answer = sock.recv(4096)
            except TimeoutError:
                if time.monotonic() >= until:
                    raise
    assert b" 408 " in answer


def test_open_connections_keep_no_health_check_out(address: tuple[str, int]) -> None:
    threads = threading.active_count()
    idle: list[Any] = [socket.create_connection(address, 60) for _ in range(5 * MAX_CONNECTIONS)]
    try:
        # Each would keep its place for PATIENCE seconds.
        for _ in range(3):
            assert get(url(address, "/health/ready")).json()["ok"]
        until = time.monotonic() + 60
        while threading.active_count() - threads > MAX_CONNECTIONS + 1:
            if time.monotonic() >= until:
                raise TimeoutError
            time.sleep(0.01)
    finally:
        for sock in idle:
            sock.close()


def test_many_at_once_are_all_answered(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What was answered counts as open until its thread has seen the client leave: none has to make
    # way for that, however late the thread is.
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 20 * MAX_CONNECTIONS)
    answers: list[bytes] = []

    def ask() -> None:
        for _ in range(20):
            answers.append(raw(address, b"GET /health/ready HTTP/1.1\r\n\r\n")[:12])

    threads = [threading.Thread(target=ask) for _ in range(MAX_CONNECTIONS // 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [b"HTTP/1.1 200"] * (20 * len(threads))


def test_a_taken_port_is_said_before_anything_is_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartupError, match=rf"port {port} .* taken .* --x-port") as caught:
            bind("127.0.0.1", port, "--x-port")
    assert "--port " not in str(caught.value)
    with pytest.raises(StartupError, match=r"--metrics-host no\.such"):
        bind("no.such.host.invalid", 0, "--x-port")


def test_a_closed_port_is_free_again_and_its_threads_are_gone() -> None:
    before = threading.active_count()
    sock = bind("127.0.0.1", 0, "--x-port")
    address = sock.getsockname()
    with serving(sock, {"/x": lambda: Reply(200, json.dumps(1).encode(), "application/json")}):
        assert get(url(address, "/x")).json() == 1
        waiting = socket.create_connection(address)
        time.sleep(0.1)
    waiting.close()
    with pytest.raises(OSError):
        socket.create_connection(address, 60)
    bind("127.0.0.1", address[1], "--x-port").close()
    deadline = time.monotonic() + 60
    while threading.active_count() > before:
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(0.01)
