"""No message of a WebSocket keeps the event loop for longer than 50 ms, so all are read in it."""

from __future__ import annotations

import base64
import random
import time

import pytest

from penstock.errors import InvalidRequest
from penstock_gateway.http.server import MAX_MESSAGE
from penstock_gateway.realtime.messages import Append, ClientMessages
from penstock_gateway.realtime.session import samples_of
from penstock_gateway.realtime.utterance import RATE, PieceCutter
from tests.gateway.heartbeat.beating import latest

APPEND, UPDATE = b'{"type":"input_audio_buffer.append",', b'{"type":"session.update",'
SAMPLES = MAX_MESSAGE * 3 // 4 - 300
TRIES = 3
"""What is too long once may be a collection of garbage that was due: the shortest counts."""


def sound(data: bytes) -> bytes:
    return APPEND + b'"audio":"' + base64.b64encode(data[: SAMPLES // 2 * 2]) + b'"}'


def filled(beginning: bytes, before: bytes, piece: bytes, after: bytes = b"}") -> bytes:
    """A message as long as one may be."""
    room = MAX_MESSAGE - len(beginning) - len(before) - len(after)
    return beginning + before + piece * (room // len(piece)) + after


def bursts() -> bytes:
    """A tenth of a second of noise, then as much silence, again and again: most pieces."""
    noise, silence = random.Random(0).randbytes(RATE // 5), bytes(RATE // 5)
    return (noise + silence) * (SAMPLES // (RATE // 5 * 2))


MESSAGES = {
    "silence": sound(bytes(SAMPLES)),
    "noise": sound(random.Random(0).randbytes(SAMPLES)),
    "bursts": sound(bursts()),
    "escapes": filled(APPEND, b'"audio":"', b"\\u0041", b'"}'),
    "a language of a megabyte": filled(UPDATE, b'"language":"', b"a", b'"}'),
    "a prompt of a megabyte": filled(UPDATE, b'"prompt":"', b"\xc3\xa9", b'"}'),
    "fields": filled(UPDATE, b'"a":1', b',"a":1'),
    "lists": filled(UPDATE, b'"a":[1', b",[]", b"]}"),
    "an unknown type": filled(b"{", b'"type":"', b"a", b'"}'),
    "no JSON": filled(b"", b"", b"[", b""),
}


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("unknown_fields", ["error", "ignore"])
def test_the_dearest_messages_are_read_in_a_turn(name: str, unknown_fields: str) -> None:
    content, messages = MESSAGES[name], ClientMessages(unknown_fields)
    assert 0.99 * MAX_MESSAGE < len(content) <= MAX_MESSAGE
    took = []
    for _ in range(TRIES):
        cutter, begun = PieceCutter(30.0), time.thread_time()
        try:
            message = messages.read(content)
            if isinstance(message, Append):
                cutter.add(samples_of(message))
        except InvalidRequest:
            pass
        took.append(time.thread_time() - begun)
    assert min(took) <= latest()
