"""Tokens written in the turn that brought them: the same bytes, the same bounds."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterable

import pytest
import uvloop
from msgspec import UNSET

from penstock.client import SequenceDelta
from penstock.client.placement import Computing, fingerprint_name
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.chat.reply import ChatFormat
from penstock_gateway.completions.reply import CompletionFormat, Prompt
from penstock_gateway.generate.answer import StreamedAnswer
from penstock_gateway.generate.batch import GenerationBatch
from penstock_gateway.generate.reply import (
    EchoOptions,
    ReplyHead,
    UsageField,
    UsageInfo,
    append_event,
)
from penstock_gateway.http.events import PING, EventStream, Room
from penstock_gateway.http.prompt_write import TextWrite
from penstock_gateway.request.fields import StreamOptions
from tests.gateway.byte_tokenizer import ByteTokenizer
from tests.gateway.fake_engine import FakeEngineClient, FakeGeneration, Step
from tests.gateway.live_gateway import LiveGateway

HEAD = ReplyHead(id='a"b', created=7, model='m\\"x')
TEXTS = ["x", ' "quoted" \\ ', "\n\t\x00\x1f", "Übergrößenträger 👋", "</script>\u2028", "{}%s"]


def chat_format() -> ChatFormat:
    return ChatFormat(HEAD, ByteTokenizer(), EchoOptions(), [1], "")  # type: ignore[arg-type]


def completion_format() -> CompletionFormat:
    prompts = [Prompt([1], "")]
    return CompletionFormat(HEAD, ByteTokenizer(), EchoOptions(), prompts, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("format_of", [chat_format, completion_format])
@pytest.mark.parametrize("usage", [UNSET, None], ids=["absent", "null"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_fast_chunk_is_the_chunk(
    format_of: Callable[[], ChatFormat | CompletionFormat], usage: UsageField, text: str
) -> None:
    reply = format_of()
    for choice in (0, 3):
        fast, slow = bytearray(b"before"), bytearray(b"before")
        reply.delta(fast, choice, SequenceDelta(index=0, text=text, token_ids=[1]), usage)
        append_event(slow, reply._plain_chunk(choice, text, usage is None))
        assert fast == slow
        plain = reply.plain_chunk(choice, usage)
        assert plain is not None
        assert b"before" + plain.event(text) == slow


def test_what_shows_more_than_text_has_no_plain_chunk() -> None:
    options = EchoOptions(token_ids=True)
    chat = ChatFormat(HEAD, ByteTokenizer(), options, [1], "")  # type: ignore[arg-type]
    assert chat.plain_chunk(0, UNSET) is None
    assert chat_format().plain_chunk(0, UsageInfo.of(1, 1, 0)) is None
    echo = EchoOptions(echo=True)
    completion = CompletionFormat(HEAD, ByteTokenizer(), echo, [Prompt([1], "x")], 1)  # type: ignore[arg-type]
    assert completion.plain_chunk(0, UNSET) is None


class Connection:
    """An ASGI send that keeps what it gets, and may wait."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.wait: Callable[[], object] | None = None

    async def send(self, message: dict) -> None:
        if self.wait is not None:
            await self.wait()
        self.sent.append(message.get("body", b"head"))


async def test_it_writes_at_once_only_where_there_is_room_and_the_headers_first() -> None:
    connection, room = Connection(), Room(full=False)
    events = EventStream(connection.send, keepalive=0, room=room)
    events.write_now(bytearray(b"first"))
    assert events.can_write_now()
    events.write_now(bytearray(b"second"))
    room.full = True
    assert not events.can_write_now()
    assert connection.sent == [b"head", b"first", b"second"]


async def test_the_end_of_plain_text_is_sent_in_the_turn_that_brings_it() -> None:
    connection = Connection()
    events = EventStream(connection.send, keepalive=0, room=Room(full=False))
    answer = StreamedAnswer(chat_format(), None, 1, 1, None)  # type: ignore[arg-type]
    answer._batch, answer._events = GenerationBatch([], 1, None, background=False), events  # type: ignore[arg-type]
    end = SequenceDelta(index=0, text="b", token_ids=[2], finish_reason="length")
    assert answer._write_now([end]) is None, "nothing has begun"
    put = answer._write_now([SequenceDelta(index=0, text="a", token_ids=[1])])
    assert put is not None
    assert connection.sent == [], "what is written goes out later"
    put()
    failed = SequenceDelta(index=0, finish_reason="error", error="x")
    assert answer._write_now([failed]) is None
    events.before_last = lambda: asyncio.sleep(0)
    assert answer._write_now([end]) is None, "others may be told of it first"
    events.before_last = None
    put = answer._write_now([end])
    assert put is not None
    put()
    sent = [
        re.findall(rb'"content":"(.)"|"finish_reason":"(.*?)"', each) for each in connection.sent
    ]
    assert sent == [[], [(b"a", b"")], [(b"b", b""), (b"", b"length")]]


@pytest.mark.parametrize("format_of", [chat_format, completion_format])
@pytest.mark.parametrize("first", ["a", ""])
async def test_what_is_prepared_is_what_the_first_delta_would_have_brought(
    format_of: Callable[[], ChatFormat | CompletionFormat], first: str
) -> None:
    """Also where the first token's text is held back."""
    deltas = [
        SequenceDelta(index=0, text=first, token_ids=[1]),
        SequenceDelta(index=0, text="b", token_ids=[2]),
        SequenceDelta(index=0, text="c", token_ids=[3], finish_reason="length"),
    ]
    found = []
    for prepares in (False, True):
        connection = Connection()
        events = EventStream(connection.send, keepalive=0, room=Room(full=False))
        answer = StreamedAnswer(format_of(), None, 1, 1, None)  # type: ignore[arg-type]
        batch = GenerationBatch([], 1, None, background=False)  # type: ignore[arg-type]
        answer._batch, answer._events = batch, events
        if prepares:
            answer._prepare()
            assert answer._prepared is not None
        assert connection.sent == [], "nothing goes out before a token"
        for delta in deltas:
            put = answer._write_now([delta])
            assert put is not None
            put()
        found.append((connection.sent, answer._completion_tokens))
    assert found[0] == found[1]


@pytest.mark.parametrize("format_of", [chat_format, completion_format])
async def test_what_was_prepared_for_another_engine_core_is_not_sent(
    format_of: Callable[[], ChatFormat | CompletionFormat],
) -> None:
    """It may die before it has computed a token, and another one compute with other bits."""
    connection = Connection()
    events = EventStream(connection.send, keepalive=0, room=Room(full=False))
    generation = FakeGeneration([], 1)
    batch = GenerationBatch([generation], 1, None, background=False)  # type: ignore[list-item, arg-type]  # Fakes.
    reply = format_of()
    reply._head = ReplyHead(id="i", model="m", created=7, computed=batch.computing)
    answer = StreamedAnswer(reply, None, 1, 1, None)  # type: ignore[arg-type]  # Nothing is timed.
    answer._batch, answer._events = batch, events
    generation.placement.placed(Computing("first"), begun=False)
    answer._prepare()
    generation.placement.placed(Computing("second"), begun=False)
    for text in "ab":
        put = answer._write_now([SequenceDelta(index=0, text=text, token_ids=[1])])
        assert put is not None
        put()
    names = re.findall(rb'"system_fingerprint":"(.*?)"', b"".join(connection.sent))
    assert len(names) >= 2
    assert set(names) == {fingerprint_name("second").encode()}


def test_nothing_is_prepared_where_the_first_token_tells_what_to_write() -> None:
    usage = StreamOptions(include_usage=True, continuous_usage_stats=True)
    echo = EchoOptions(echo=True)
    echoing = CompletionFormat(HEAD, ByteTokenizer(), echo, [Prompt([1], "x")], 1)  # type: ignore[arg-type]
    for reply, options, choices in (
        (echoing, None, 1),
        (chat_format(), usage, 1),
        (chat_format(), None, 2),
    ):
        answer = StreamedAnswer(reply, options, choices, 1, None)  # type: ignore[arg-type]
        answer._prepare()
        assert (answer._prepared, answer._unsent) == (None, b"")


async def test_a_server_that_does_not_tell_has_no_room() -> None:
    events = EventStream(Connection().send, keepalive=0)
    await events.write(b"first")
    assert not events.can_write_now()


async def test_text_that_goes_past_a_stream_keeps_it_alive() -> None:
    connection, room = Connection(), Room(full=False)
    writer = TextWrite(None, -1, b"", b"")  # type: ignore[arg-type]  # Nothing is written.
    room.text = lambda before, after: writer
    events = EventStream(connection.send, keepalive=60, room=room)
    await events.write(b"first")
    assert events.text(b"", b"") is writer
    events._last_write = time.perf_counter() - 100
    writer.last = time.perf_counter() - 50
    due = await events.tick()
    assert due is not None
    assert 0 < due <= 10, "from the text on"
    writer.last -= 50
    await events.tick()
    assert connection.sent == [b"head", b"first", PING]


async def test_a_send_that_waits_is_an_error_not_a_loss() -> None:
    connection = Connection()
    events = EventStream(connection.send, keepalive=0, room=Room(full=False))
    await events.write(b"first")
    connection.wait = lambda: asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="blocked"):
        events.write_now(bytearray(b"second"))


async def test_what_the_connection_takes_itself_goes_past_the_application() -> None:
    pieces: list[bytes] = []
    takes = True

    def write(piece: bytes) -> bool:
        if takes:
            pieces.append(piece)
        return takes

    connection = Connection()
    events = EventStream(connection.send, keepalive=0, room=Room(full=False, write=write))
    await events.write(b"first")
    events.write_now(bytearray(b"second"))
    takes = False
    events.write_now(bytearray(b"third"))
    assert (pieces, connection.sent) == ([b"second"], [b"head", b"first", b"third"])


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_stream_is_whole_and_a_request_behind_it_in_the_pipe_is_answered(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    def script(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        for at in range(20):
            yield [SequenceDelta(index=0, text=f"<{at}>", token_ids=[at])]
            yield 0.01
        yield [SequenceDelta(index=0, finish_reason="stop")]

    body = b'{"prompt":"x","stream":true,"max_tokens":30}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    first = head + b"content-length: %d\r\n\r\n" % len(body) + body
    second = b"GET /health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    with (
        LiveGateway(FakeEngineClient(script), loop=loop) as gateway,
        socket.create_connection(("127.0.0.1", gateway.port), 60) as connection,
    ):
        connection.sendall(first + second)
        got = b"".join(iter(lambda: connection.recv(65536), b""))
    texts = re.findall(rb'"text":"(<\d+>)"', got)
    assert texts == [b"<%d>" % at for at in range(20)]
    stream, answer = got.split(b"data: [DONE]\n\n")
    assert stream.startswith(b"HTTP/1.1 200")
    assert answer.startswith(b"\r\n0\r\n\r\nHTTP/1.1 200")
