"""The client of streams that outlive a gateway, beside servers that break off anywhere."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import resumed_events
from penstock.cli import http_client
from penstock.cli.http_client import HttpClient, Unreachable
from penstock.config.settings import GatewayConfig

pytestmark = pytest.mark.timeout(60)

HEAD = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
EVENTS = [{"a": 1}, {"b": "two"}, {"c": 3}]
WRITTEN = "".join(
    f"id: {number}\ndata: {json.dumps(event)}\n\n" for number, event in enumerate(EVENTS)
).encode()
WHOLE = WRITTEN + b"data: [DONE]\n\n"


@contextmanager
def served(handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    """The URL of a server of those."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def breaking(first: bytes, *, silent: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """A server whose first answer ends like that, as a proxy's does that tells no length; the next
    one goes on behind the event that it is told of. Yields its URL, and what it was told.
    silent: the first answer's connection stays open, without another byte."""
    told: list[bytes] = []
    over = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            last, length = b"", 0
            while (line := self.rfile.readline().strip()) != b"":
                name, _, value = line.partition(b": ")
                last = value if name.lower() == b"last-event-id" else last
                length = int(value) if name.lower() == b"content-length" else length
            self.rfile.read(length)
            told.append(last)
            rest = WRITTEN.partition(b"id: %b\n" % last)[2].partition(b"\n\n")[2]
            answers = HEAD + (rest + b"data: [DONE]\n\n" if len(told) > 1 else first)
            self.wfile.write(answers)
            if silent and len(told) == 1:
                over.wait(30)

    with served(Handler) as url:
        try:
            yield url, told
        finally:
            over.set()


@contextmanager
def answering(with_what: Callable[[], bytes]) -> Iterator[str]:
    """A server that answers so each time, and then breaks off. Yields its URL."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while (line := self.rfile.readline().strip()) != b"":
                name, _, value = line.partition(b": ")
                length = int(value) if name.lower() == b"content-length" else length
            self.rfile.read(length)
            self.wfile.write(HEAD + with_what())

    with served(Handler) as url:
        yield url


@pytest.mark.parametrize(("at", "last"), [(b"id: 1", b"0"), (b'two"', b"0"), (b"id: 2", b"1")])
def test_a_part_of_an_event_is_none(at: bytes, last: bytes) -> None:
    with breaking(WRITTEN[: WRITTEN.index(at)]) as (url, told):
        found: list[Any] = list(resumed_events(url, {"messages": []}, patience=20))
    assert found == EVENTS
    assert told == [b"", last]


@pytest.mark.parametrize("patience", [0.5, 6])
def test_a_connection_that_falls_silent_is_broken(
    monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """As that to a machine without power is, which tells nobody. Patience begins there."""
    monkeypatch.setattr(http_client, "SILENCE", 3.0)
    with breaking(WRITTEN[: WRITTEN.index(b"id: 2")], silent=True) as (url, told):
        found: list[Any] = list(resumed_events(url, {"messages": []}, patience=patience))
    assert found == EVENTS
    assert told == [b"", b"1"]


@pytest.mark.parametrize("patience", [0.0, 0.1, 20.0, 50.0, 120.0, 1000.0])
def test_no_patience_leaves_a_server_between_two_comments(
    monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """As it is there before a request's turn comes. Twice as long, for what is late on its way."""
    made: list[float] = []

    class Client(HttpClient):
        def __init__(self, url: str, api_key: str | None, timeout: float) -> None:
            super().__init__(url, api_key, timeout)
            made.append(timeout)

    monkeypatch.setattr(http_client, "HttpClient", Client)
    with answering(lambda: b": ping\n" + WHOLE) as url:
        assert list(resumed_events(url, {"messages": []}, patience=patience)) == EVENTS
    (timeout,) = made
    assert timeout == max(2 * GatewayConfig().keepalive_interval, patience / 2)


class Clock:
    """In the place of `time`: it goes on where it is told to."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(http_client, "time", clock)
    return clock


def test_whoever_comments_is_there(clock: Clock) -> None:
    """One breaks off; the next queues the request for longer than patience, and breaks off, too."""
    answers = [b"", b": ping\n", WHOLE]
    asked = iter(answers)

    def later() -> bytes:
        answer = next(asked)
        clock.now += 1000.0 if b"ping" in answer else 0.0
        return answer

    with answering(later) as url:
        assert list(resumed_events(url, {"messages": []}, patience=20)) == EVENTS
    assert list(asked) == []


def test_whoever_only_breaks_off_is_not_there(clock: Clock) -> None:
    count = 0

    def later() -> bytes:
        nonlocal count
        count, clock.now = count + 1, clock.now + 7.0
        return b'data: {"without": "an id"}\n\n'

    with answering(later) as url, pytest.raises(Unreachable, match="broke off"):
        list(resumed_events(url, {"messages": []}, patience=20))
    assert count == 4  # The first breaks off at 7 s, the last at 28 s.
