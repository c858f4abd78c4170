"""The client of streams that outlive a gateway, beside servers that break off anywhere."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import resumed_events

pytestmark = pytest.mark.timeout(60)

HEAD = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
EVENTS = [{"a": 1}, {"b": "two"}, {"c": 3}]
WRITTEN = "".join(
    f"id: {number}\ndata: {json.dumps(event)}\n\n" for number, event in enumerate(EVENTS)
).encode()


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

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", told
        finally:
            over.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("at", "last"), [(b"id: 1", b"0"), (b'two"', b"0"), (b"id: 2", b"1")])
def test_a_part_of_an_event_is_none(at: bytes, last: bytes) -> None:
    with breaking(WRITTEN[: WRITTEN.index(at)]) as (url, told):
        found: list[Any] = list(resumed_events(url, {"messages": []}, patience=20))
    assert found == EVENTS
    assert told == [b"", last]


def test_a_connection_that_falls_silent_is_broken() -> None:
    """As that to a machine without power is, which tells nobody."""
    with breaking(WRITTEN[: WRITTEN.index(b"id: 2")], silent=True) as (url, told):
        found: list[Any] = list(resumed_events(url, {"messages": []}, patience=6))
    assert found == EVENTS
    assert told == [b"", b"1"]
