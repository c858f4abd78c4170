"""Keeps so many streams open for so long, and checks that each says all that it should."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httptools
import msgspec

from testing.words import text

OPENING = 50
"""New streams in a tenth of a second at most."""
SILENCE = 60.0
"""Seconds without a byte after which a stream counts as lost."""
LOSSES_KEPT = 20


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


@dataclass(frozen=True)
class Shape:
    streams: int  # open at a time
    shortest: int  # tokens of a stream
    longest: int  # tokens of a stream

    def tokens(self, seed: int) -> int:
        """Of that stream: any length, evenly, and no neighbours alike."""
        return self.shortest + 37 * seed % (self.longest - self.shortest + 1)


@dataclass
class Score:
    """What has become of the streams so far."""

    begun: int = 0
    whole: int = 0
    lost: int = 0
    tokens: int = 0
    bytes: int = 0
    longest_gap: float = 0.0  # seconds between two reads of one stream, after its first
    losses: list[str] = field(default_factory=list)  # the first few, in words


class Stream(asyncio.Protocol):
    """One connection with one streamed completion. over: called with what was wrong, or None."""

    def __init__(
        self, seed: int, tokens: int, score: Score, over: Callable[[Stream, str | None], None]
    ) -> None:
        self.seed, self._tokens, self._score, self._over = seed, tokens, score, over
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._said: list[str] = []
        self._finish: str | None = None
        self._done = self._ended = False
        self.heard = time.monotonic()
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        fields = {
            "prompt": f"Stream {self.seed} says:",
            "max_tokens": self._tokens,
            "seed": self.seed,
            "ignore_eos": True,
            "stream": True,
        }
        body = json.dumps(fields).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n"
        transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._said:
            self._score.longest_gap = max(self._score.longest_gap, now - self.heard)
        self.heard = now
        self._score.bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(f"not HTTP: {error!r}")

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            if line == b"data: [DONE]":
                self._done = True
            elif line.startswith(b"data: "):
                self._take(line[6:])

    def _take(self, data: bytes) -> None:
        chunk = _DECODER.decode(data)
        if chunk.error is not None:
            self.end(f"error event: {chunk.error}")
        for choice in chunk.choices:
            self._said.append(choice.text)
            self._finish = choice.finish_reason or self._finish

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.end(self._fault())

    def _fault(self) -> str | None:
        """What is wrong with what was said."""
        status = self._parser.get_status_code()
        if status != 200:
            return f"status {status}: {self._rest[:200]!r}"
        said, expected = "".join(self._said), text(self.seed, self._tokens)
        if said != expected:
            same = next(
                (i for i, (a, b) in enumerate(zip(said, expected, strict=False)) if a != b), -1
            )
            return f"{len(said)} of {len(expected)} characters, the first other one at {same}"
        if not self._done or self._finish != "length":
            return f"no proper end: [DONE] {self._done}, finish reason {self._finish}"
        self._score.tokens += self._tokens
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(f"cut after {len(self._said)} pieces: {exc!r}")

    def end(self, fault: str | None) -> None:
        """Once; what comes later is nothing."""
        if not self._ended:
            self._ended = True
            if self._transport is not None:
                self._transport.close()
            self._over(self, fault)


class Soak:
    """The streams of a run."""

    def __init__(self, port: int, shape: Shape) -> None:
        self._port, self._shape = port, shape
        self.score = Score()
        self.open: set[Stream] = set()

    async def run(self, until: float) -> None:
        """Replaces what ends until that moment, and then waits for the rest."""
        while time.monotonic() < until:
            missing = self._shape.streams - len(self.open)
            await asyncio.gather(*(self._begin() for _ in range(min(missing, OPENING))))
            self._look()
            await asyncio.sleep(0.1 if missing <= OPENING else 0.01)
        while self.open:
            self._look()
            await asyncio.sleep(0.1)

    async def _begin(self) -> None:
        seed = self.score.begun
        self.score.begun += 1
        stream = Stream(seed, self._shape.tokens(seed), self.score, self._end)
        self.open.add(stream)
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: stream, "127.0.0.1", self._port)
        except OSError as error:
            stream.end(f"no connection: {error}")

    def _look(self) -> None:
        silent = time.monotonic() - SILENCE
        for stream in [each for each in self.open if each.heard < silent]:
            stream.end(f"silent for {SILENCE:g} s")

    def _end(self, stream: Stream, fault: str | None) -> None:
        self.open.discard(stream)
        if fault is None:
            self.score.whole += 1
            return
        self.score.lost += 1
        if len(self.score.losses) < LOSSES_KEPT:
            self.score.losses.append(f"stream {stream.seed}: {fault}")
