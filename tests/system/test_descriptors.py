"""Processes at their limit of file descriptors."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from testing.serving import PATIENCE, Server, wait_until

pytestmark = pytest.mark.timeout(600)

LIMIT = 64
CLIENTS = 60
BODY = {"prompt": [1, 2, 3], "max_tokens": 100, "ignore_eos": True, "temperature": 1, "seed": 3}
Start = Callable[..., Server]


@pytest.fixture
def server(start_server: Start, tiny_model: str) -> Server:
    return start_server(tiny_model, "--num-kv-blocks", "64")


def text_of(server: Server) -> str:
    status, answer = server.post("/v1/completions", BODY)
    assert status == 200, answer
    text: str = answer["choices"][0]["text"]
    return text


@contextmanager
def asked_meanwhile(server: Server, expected: str) -> Iterator[Callable[[], int]]:
    """One request after the other has the expected answer, over and over; gives how many had."""
    over, right, wrong = threading.Event(), [0], list[Any]()

    def ask() -> None:
        while not over.is_set():
            try:
                assert text_of(server) == expected
                right[0] += 1
            except Exception as error:
                wrong.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield lambda: right[0]
    finally:
        over.set()
        thread.join()
    assert not wrong


def test_a_gateway_keeps_some_for_itself(server: Server) -> None:
    """Who streams goes on, who comes is served or told, and the log has one line of it."""
    host, port = "127.0.0.1", int(server.url.rpartition(":")[2])
    resource.prlimit(server.child("gateway 0"), resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    request = f"GET /health HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode()

    def health(client: socket.socket) -> bytes:
        client.sendall(request)
        return client.recv(12)

    statuses: Counter[bytes] = Counter()
    with ExitStack() as stack:
        # Its connections are new ones: what is stored needs files, and an answer needs room.
        expected = text_of(server)
        clients = [
            stack.enter_context(socket.create_connection((host, port), PATIENCE))
            for _ in range(CLIENTS)
        ]
        for client in clients:
            statuses[health(client)] += 1
        assert set(statuses) <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}, statuses
        assert statuses[b"HTTP/1.1 200"] >= LIMIT // 4, statuses
        # Idle connections make room after a second.
        wait_until(lambda: server.get("/health")[0] == 200)
        assert text_of(server) == expected
    assert text_of(server) == expected
    assert server.stderr.count("connections hold nearly all file descriptors") == 1


def test_an_engine_core_without_any_is_started_again(server: Server) -> None:
    """libzmq aborts where it can't accept at a Unix socket, which only the same user reaches."""
    expected = text_of(server)
    engine = server.child("engine")
    [path] = server.runtime_base.rglob("frontend.sock")
    with asked_meanwhile(server, expected) as right, ExitStack() as stack:
        wait_until(lambda: right() >= 2)
        used = len(os.listdir(f"/proc/{engine}/fd"))
        resource.prlimit(engine, resource.RLIMIT_NOFILE, (used + 2, used + 2))
        wait_until(lambda: "few file descriptors are left" in server.stderr)
        for _ in range(5):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            try:
                client.connect(str(path))
            except OSError:
                break  # It has ended already.
        wait_until(lambda: server.children().get("penstock: engine") not in (None, engine))
        before = right()
        wait_until(lambda: right() >= before + 2)
    assert server.stderr.count("child died") == 1
    assert "SIGABRT" in server.stderr
