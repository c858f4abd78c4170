"""Tokens written in the turn that brought them: the same bytes, the same bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import UNSET

from penstock.client import SequenceDelta
from penstock_gateway.events import EventStream
from penstock_gateway.http_protocol import Room
from penstock_gateway.openai.chat_reply import ChatFormat
from penstock_gateway.openai.completion_reply import CompletionFormat, Prompt
from penstock_gateway.openai.reply import ReplyHead, UsageField, append_event
from penstock_gateway.openai.shown import Shown
from tests.gateway.fake_engine import ByteTokenizer

HEAD = ReplyHead(id='a"b', created=7, model='m\\"x', system_fingerprint=None)
TEXTS = ["x", ' "quoted" \\ ', "\n\t\x00\x1f", "Übergrößenträger 👋", "</script>\u2028", "{}%s"]


def chat_format() -> ChatFormat:
    return ChatFormat(HEAD, ByteTokenizer(), Shown(), [1], "")  # type: ignore[arg-type]


def completion_format() -> CompletionFormat:
    prompts = [Prompt([1], "")]
    return CompletionFormat(HEAD, ByteTokenizer(), Shown(), prompts, 4)  # type: ignore[arg-type]


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


class Connection:
    """An ASGI send that keeps what it gets, and may wait."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.wait: Callable[[], object] | None = None

    async def send(self, message: dict) -> None:
        if self.wait is not None:
            await self.wait()
        self.sent.append(message.get("body", b"head"))


async def test_it_writes_only_after_the_headers_and_where_there_is_room() -> None:
    connection, room = Connection(), Room(full=False)
    events = EventStream(connection.send, keepalive=0, room=room)
    assert not events.can_write_now()
    await events.write(b"first")
    assert events.can_write_now()
    events.write_now(bytearray(b"second"))
    room.full = True
    assert not events.can_write_now()
    assert connection.sent == [b"head", b"first", b"second"]


async def test_a_server_that_does_not_tell_has_no_room() -> None:
    events = EventStream(Connection().send, keepalive=0)
    await events.write(b"first")
    assert not events.can_write_now()


async def test_a_send_that_waits_is_an_error_not_a_loss() -> None:
    import asyncio

    connection = Connection()
    events = EventStream(connection.send, keepalive=0, room=Room(full=False))
    await events.write(b"first")
    connection.wait = lambda: asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="waits"):
        events.write_now(bytearray(b"second"))
