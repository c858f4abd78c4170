"""What a scripted engine gives, and what is written to a socket by hand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from penstock.client import SequenceDelta
from penstock.request.sampling_params import SamplingParams
from tests.gateway.fake_engine import Step
from tests.gateway.live_gateway import Connection

CHAT = "/v1/chat/completions"
SOON = 60.0


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(0.01)


def steps(*script: Step) -> Callable[[list[int], SamplingParams], Iterator[Step]]:
    return lambda prompt, params: iter(script)


def delta(text: str, finish: Any = None, error: str | None = None) -> SequenceDelta:
    return SequenceDelta(index=0, text=text, token_ids=[65], finish_reason=finish, error=error)


def endless(prompt: list[int], params: SamplingParams) -> Iterator[Step]:
    while True:
        yield [delta("tick ")]
        yield 0.01


def silence(over: threading.Event) -> Iterator[Step]:
    """Until it is over."""
    while not over.is_set():
        yield 0.01


def trickle(connection: Connection, data: bytes) -> None:
    for byte in data:
        connection.socket.sendall(bytes([byte]))
        time.sleep(0.02)


def unchunked(data: bytes) -> tuple[bytes, str]:
    """Head and body of a response with chunked transfer encoding, by hand."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    out = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return head, out.decode()
        out, rest = out + rest[:length], rest[length + 2 :]
