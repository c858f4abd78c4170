"""Bodies that are meant to hurt: refused, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from testing.processes import processor_seconds
from testing.serving import Server
from testing.streams.reading import connected
from testing.streams.timed import listen

pytestmark = [pytest.mark.timeout(600)]

PATIENCE = 200.0
"""Seconds that a refusal may take here, on a machine that may have other work."""
MOST_SECONDS = 5.0
"""Seconds of the gateway's processor time, which other work doesn't add to."""

PIECE = 1 << 20
MESSAGE = b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,'
DEEP = 100_000

BODIES: dict[str, Callable[[], bytes]] = {
    "100 MB of one string": lambda: b'{"prompt":"' + b"x" * 100_000_000 + b'"}',
    "15 MB of string for a number": lambda: MESSAGE + b'"n":"' + b"x" * 15_000_000 + b'"}',
    "15 MB of prompt": lambda: b'{"prompt":"' + b"ab " * 5_000_000 + b'"}',
    "5 million token ids": lambda: b'{"prompt":[' + b"1," * 5_000_000 + b"1]}",
    "1 million messages": lambda: (
        b'{"messages":[' + b'{"role":"a"},' * 1_000_000 + b'{"role":"a"}]}'
    ),
    "arrays, 100,000 deep": lambda: MESSAGE + b'"tools":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "objects, 100,000 deep": lambda: (
        MESSAGE + b'"metadata":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}"
    ),
    "lone surrogate": lambda: b'{"prompt":"\\ud800"}',
    "NaN": lambda: b'{"prompt":"x","temperature":NaN}',
    "Infinity": lambda: b'{"prompt":"x","temperature":Infinity}',
    "an integer of 1 million digits": lambda: b'{"prompt":"x","seed":' + b"9" * 1_000_000 + b"}",
    "a float of 1 million digits": lambda: (
        b'{"prompt":"x","temperature":0.' + b"1" * 1_000_000 + b"e99999}"
    ),
    "1 million duplicate keys": lambda: b"{" + b'"prompt":"x",' * 1_000_000 + b'"prompt":7}',
    "1 million unknown keys": lambda: (
        b'{"prompt":"x"' + b"".join(b',"k%d":1' % i for i in range(1_000_000)) + b"}"
    ),
    "an unknown key of 10 MB": lambda: b'{"prompt":"x","' + b"y" * 10_000_000 + b'":1}',
    "not UTF-8": lambda: b'{"prompt":"' + b"\xff" * 1_000_000 + b'"}',
    "a number alone": lambda: b"7",
}
"""Each is answered by a 4xx."""


async def attack(url: str, body: bytes) -> int:
    """Sends the body; the status of its answer."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    path = "/v1/chat/completions" if body.startswith(b'{"messages"') else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    answer = asyncio.create_task(reader.readline())
    try:
        writer.write(head.encode())
        for start in range(0, len(body), PIECE):
            writer.write(body[start : start + PIECE])
            await writer.drain()
    except ConnectionError:
        pass  # It was answered and closed before the end.
    line = await answer
    writer.close()
    return int(line.split()[1])


async def stream(url: str, number: int, tokens: int) -> str:
    """The text of a streamed completion."""
    prompt = f"Story number {number}: once upon a time"
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 1, "seed": number}
    async with connected(url, 1) as client:
        heard = await listen(client, body)
    return "".join(event["choices"][0]["text"] for event in heard.events)


async def test_they_are_refused_and_others_go_on(server: Server) -> None:
    alone = await stream(server.url, 1, 300)
    other = asyncio.create_task(stream(server.url, 1, 300))
    gateway = server.child("gateway 0")
    for name, make in BODIES.items():
        body = make()
        before = processor_seconds(gateway)
        async with asyncio.timeout(PATIENCE):
            status = await attack(server.url, body)
        assert 400 <= status < 500, f"{name}: {status}"
        spent = processor_seconds(gateway) - before
        assert spent < MOST_SECONDS, f"{name}: {spent:.1f} s"
    disturbed = await other
    assert disturbed == alone
    assert server.get("/health/ready")[0] == 200
