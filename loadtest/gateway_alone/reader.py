"""A client that does as little as a client can: it counts what comes, and notes when.

    python -m loadtest.gateway_alone.reader PORT BOARD --streams 1000 --tokens 100 --group 256

Prints one JSON object: tokens, events, seconds from the first token to the last, CPU seconds of
this process for reading them, and the latencies (ms) from the engine's send to the receipt here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import uvloop

from loadtest.report.figures import distribution
from penstock_gateway.process import raise_file_limit
from testing.board import Board
from testing.null_engine import WORD_BYTES

_CONTENT = re.compile(rb'"content":"([^"]+)"')
OPENING = 32
"""Connections that are being made at once."""


class Stream(asyncio.Protocol):
    """One connection with one streamed chat completion."""

    def __init__(self, reader: Reader, number: int) -> None:
        self._reader = reader
        self._group = number // reader.group
        self._rest = b""
        self._tokens = 0
        self.sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._body = json.dumps(
            {
                "messages": [{"role": "user", "content": "Tell me a story."}],
                "max_tokens": reader.tokens,
                "temperature": 0,
                "seed": number,
                "stream": True,
            }
        ).encode()

    def connection_made(self, transport: Any) -> None:
        head = f"POST {self._reader.path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(self._body)}"
        transport.write(head.encode() + b"\r\n\r\n" + self._body)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        reader = self._reader
        if not self._rest and data.startswith(b"HTTP/1.1 ") and data[9:12] != b"200":
            reader.end(RuntimeError(data.decode(errors="replace")))
        data = self._rest + data
        cut = data.rfind(b"\n\n") + 2
        if cut < 2:
            self._rest = data
            return
        self._rest = data[cut:]
        for content in _CONTENT.findall(data, 0, cut):
            reader.events += 1
            for _ in range(len(content) // WORD_BYTES):
                turn = self._tokens * reader.groups + self._group
                reader.latencies.append(now - reader.times[turn])
                self._tokens += 1
                reader.received += 1
        reader.note(now)
        if self._tokens == reader.tokens:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.lost(self._tokens)


class Reader:
    """All streams of a run."""

    def __init__(self, board: Board, flags: argparse.Namespace) -> None:
        self.board, self.times = board, board.times
        self.streams, self.tokens, self.group = flags.streams, flags.tokens, flags.group
        self.groups = -(-self.streams // self.group)
        self.path: str = flags.path
        self.latencies = array("d")
        self.events = self.received = 0
        self.first = self.last = self._cpu = self.cpu = 0.0
        self._open = self.streams
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note(self, now: float) -> None:
        """Some tokens came."""
        if not self.first:
            self.first, self._cpu = now, time.process_time()
        self.last = now
        self.board.received = self.received

    def lost(self, tokens: int) -> None:
        """A connection has ended."""
        self._open -= 1
        if tokens != self.tokens:
            self.end(RuntimeError(f"a stream ended with {tokens} of {self.tokens} tokens"))
        elif not self._open:
            self.cpu = time.process_time() - self._cpu
            self.end(None)

    def end(self, error: Exception | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)

    async def run(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        for number in range(self.streams):
            await loop.create_connection(lambda n=number: Stream(self, n), "127.0.0.1", port)
            while number - self.board.submitted > OPENING and not self._over.done():
                await asyncio.sleep(0.001)
        await self._over

    def figures(self) -> dict[str, Any]:
        latencies = distribution(self.latencies, 1000)
        return {
            "tokens": self.received,
            "events": self.events,
            "seconds": self.last - self.first,
            "client_cpu_seconds": self.cpu,
            **{f"{name}_ms": latencies[name] for name in ("p50", "p90", "p99", "max")},
        }


async def read(flags: argparse.Namespace) -> dict[str, Any]:
    reader = Reader(Board(flags.board), flags)
    try:
        await asyncio.wait_for(reader.run(flags.port), flags.timeout)
    finally:
        reader.board.ended = True
    return reader.figures()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("board", type=Path)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--group", type=int, default=256)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--timeout", type=float, default=300.0)
    flags = parser.parse_args()
    raise_file_limit()
    json.dump(uvloop.run(read(flags)), sys.stdout)


if __name__ == "__main__":
    main()
