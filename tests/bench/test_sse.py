"""The SSE and HTTP parsers give the same whatever the split of the bytes."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock_bench.load.event_parser import MAX_EVENT_BYTES, EventParser, EventTooLarge
from penstock_bench.load.response_parser import ProtocolError, ResponseParser
from tests.met import met
from tests.thinning import part

_LINES = st.sampled_from(
    [
        b"",
        b"",
        b"data: x",
        b"data:y",
        b"data:  two",
        b"data",
        b": comment",
        b"event: e",
        b"id:1",
        b"dat",
        b'data: {"a": "\xc3\xa9"}',
        b"data: [DONE]",
        b"retry: 5",
        b" data: no",
    ]
)
_EVENTS = st.sampled_from([b"", b"data: x", b"data:y"])
_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def naive_events(stream: bytes) -> list[bytes]:
    """The standard's rules, on the whole stream at once."""
    lines = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    events: list[bytes] = []
    data: list[bytes] = []
    for line in lines[:-1]:  # what follows the last line end is no whole line
        if line == b"":
            if data:
                events.append(b"\n".join(data))
            data = []
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
    return events


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


# An empty piece between the halves of a line end once made an event of nothing.
@example(bom=False, lines=[(b"data: x", b"\r\n")], rest=b"", cuts=[8, 8])
@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(
    bom=st.booleans(),
    lines=st.lists(st.tuples(_EVENTS, _ENDS), min_size=8, max_size=25)
    | st.lists(st.tuples(_LINES, _ENDS), max_size=25),
    rest=_LINES,
    cuts=st.lists(st.integers(0, 10_000), min_size=2, max_size=30)
    | st.lists(st.integers(0, 10_000), max_size=30),
)
def test_events_do_not_depend_on_the_split(
    bom: bool, lines: list[tuple[bytes, bytes]], rest: bytes, cuts: list[int]
) -> None:
    stream = (b"\xef\xbb\xbf" if bom else b"") + b"".join(a + b for a, b in lines) + rest
    parser = EventParser()
    events = [event for piece in pieces(stream, cuts) for event in parser.feed(piece)]
    assert events == naive_events(stream)
    met("several events, cut", len(events) > 1 and len(cuts) > 1)


def test_an_endless_event_is_refused() -> None:
    parser = EventParser()
    block = b"data: " + b"x" * 65_000
    for _ in range(MAX_EVENT_BYTES // 65_000):
        parser.feed(block + b"\n")
    with pytest.raises(EventTooLarge):
        parser.feed(block + b"\n")
    with pytest.raises(EventTooLarge):
        EventParser().feed(b"x" * (MAX_EVENT_BYTES + 1))


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(
    body=st.binary(max_size=300),
    chunk_cuts=st.lists(st.integers(0, 1000), max_size=6),
    framing=st.sampled_from(["chunked", "length", "close"]),
    cuts=st.lists(st.integers(0, 10_000), max_size=40),
)
def test_body_does_not_depend_on_the_split(
    body: bytes, chunk_cuts: list[int], framing: str, cuts: list[int]
) -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A: b\r\n"
    if framing == "chunked":
        chunks = [piece for piece in pieces(body, chunk_cuts) if piece]
        wire = b"".join(b"%X;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        stream = head + b"Transfer-Encoding: chunked\r\n\r\n" + wire + b"0\r\nT: 1\r\n\r\n"
    elif framing == "length":
        stream = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:
        stream = head + b"\r\n" + body
    met("a chunked body, cut", framing == "chunked" and body and cuts)
    parser = ResponseParser()
    received = b"".join(parser.feed(piece) for piece in pieces(stream, cuts))
    assert parser.complete == (framing != "close")
    parser.end()
    assert parser.complete
    assert received == body
    assert parser.status == 200
    assert parser.headers["x-a"] == "b"


@pytest.mark.parametrize(
    "stream",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 999 No\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
        b"H" * 70_000,
    ],
)
def test_what_is_no_http_is_refused(stream: bytes) -> None:
    with pytest.raises(ProtocolError):
        ResponseParser().feed(stream)


def test_a_body_that_breaks_off_is_not_complete() -> None:
    for head in (b"Content-Length: 5", b"Transfer-Encoding: chunked"):
        parser = ResponseParser()
        parser.feed(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n3\r\n")
        parser.end()
        assert not parser.complete
