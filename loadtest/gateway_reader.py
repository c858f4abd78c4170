"""A client that does as little as a client can: it counts what comes, and notes when.

    python -m loadtest.gateway_reader PORT BOARD STREAMS TOKENS GROUP

Prints one JSON object: tokens, events, seconds from the first token to the last, CPU seconds of
this process for reading them, and the latencies (ms) from the engine's send to the receipt here.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import uvloop

from loadtest.report import distribution
from penstock.net.listener import raise_file_limit
from testing.board import Board
from testing.null_engine import WORD_BYTES

_END = b"\r\n0\r\n\r\n"
"""What follows the last event: a client that left before would have its stream ended as one that
was given up."""
_CONTENT = re.compile(rb'"content":"([^"]+)"')
PATIENCE = 300.0
OPENING = 32
"""Connections that are being made at once."""


class Stream(asyncio.Protocol):
    """One connection with one streamed chat completion."""

    def __init__(self, reader: Reader, number: int) -> None:
        self._reader = reader
        self._group = number // reader.group
        self._rest = b""
        self._tokens = 0
        body = {
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_tokens": reader.tokens,
            "temperature": 0,
            "seed": number,
            "stream": True,
        }
        self._body = json.dumps(body).encode()

    def connection_made(self, transport: Any) -> None:
        length = b"content-length: %d\r\n\r\n" % len(self._body)
        transport.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n" + length + self._body
        )
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        reader = self._reader
        if not self._rest and data.startswith(b"HTTP/1.1 ") and data[9:12] != b"200":
            reader.fail(data.decode(errors="replace"))
        data = self._rest + data
        cut = data.rfind(b"\n\n") + 2
        self._rest = data[cut:] if cut >= 2 else data
        if cut >= 2:
            self._count(data, cut, now)
        if self._rest == _END:
            self._transport.close()

    def _count(self, data: bytes, cut: int, now: float) -> None:
        reader = self._reader
        for content in _CONTENT.findall(data, 0, cut):
            reader.events += 1
            for _ in range(len(content) // WORD_BYTES):
                turn = self._tokens * reader.groups + self._group
                if self._tokens in reader.edges:
                    reader.edges[self._tokens].append(len(reader.latencies))
                reader.latencies.append(now - reader.times[turn])
                self._tokens += 1
        reader.note(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.lost(self._tokens)


class Reader:
    """All streams of a run."""

    def __init__(self, board: Board, streams: int, tokens: int, group: int) -> None:
        self.board, self.times = board, board.times
        self.streams, self.tokens, self.group = streams, tokens, group
        self.groups = -(-self.streams // self.group)
        self.latencies = array("d")  # seconds, of each token
        self.edges: dict[int, list[int]] = {0: [], tokens - 1: []}
        """Places in `latencies` of the streams' first tokens, and of their last ones."""
        self.events = 0
        self._first = self._last = self._cpu = 0.0
        self._open = self.streams
        self._over: asyncio.Future[None]

    def note(self, now: float) -> None:
        """Some tokens came."""
        if not self._first:
            self._first, self._cpu = now, time.process_time()
        self._last = now
        self.board.received = len(self.latencies)

    def lost(self, tokens: int) -> None:
        """A connection has ended."""
        self._open -= 1
        if tokens != self.tokens:
            self.fail(f"a stream ended with {tokens} of {self.tokens} tokens")
        elif not self._open and not self._over.done():
            self._over.set_result(None)

    def fail(self, reason: str) -> None:
        if not self._over.done():
            self._over.set_exception(RuntimeError(reason))

    async def run(self, port: int) -> dict[str, Any]:
        """What there is to tell when all streams have ended."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        for number in range(self.streams):
            await loop.create_connection(lambda n=number: Stream(self, n), "127.0.0.1", port)
            while number - self.board.submitted > OPENING and not self._over.done():
                await asyncio.sleep(0.001)
        await self._over
        cpu = time.process_time() - self._cpu
        latencies = distribution(self.latencies, 1000)
        return {
            "tokens": len(self.latencies),
            "events": self.events,
            "seconds": self._last - self._first,
            "client_cpu_seconds": cpu,
            **{f"{name}_ms": latencies[name] for name in ("p50", "p90", "p99", "max")},
            **self._by_place(),
        }

    def _by_place(self) -> dict[str, float]:
        """p50 and p99 of the streams' first tokens, their last ones, and those between."""
        at_edges = {place for places in self.edges.values() for place in places}
        parts = {
            "first": [self.latencies[place] for place in self.edges[0]],
            "between": [each for n, each in enumerate(self.latencies) if n not in at_edges],
            "last": [self.latencies[place] for place in self.edges[self.tokens - 1]],
        }
        found = {part: distribution(latencies, 1000) for part, latencies in parts.items()}
        return {f"{part}_{name}_ms": found[part][name] for part in parts for name in ("p50", "p99")}


async def read(port: int, reader: Reader) -> dict[str, Any]:
    try:
        return await asyncio.wait_for(reader.run(port), PATIENCE)
    finally:
        reader.board.ended = True


if __name__ == "__main__":
    raise_file_limit()
    port, board, *shape = sys.argv[1:]
    made = Reader(Board(Path(board)), *map(int, shape))
    json.dump(uvloop.run(read(int(port), made)), sys.stdout)
