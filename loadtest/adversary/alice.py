"""Ordinary streams of one tenant, and how long they wait between two pieces."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import httpx

from loadtest.streaming import Refused, connected, events, prompt_ids

SILENCE = 300.0
"""Seconds without a byte after which a stream is broken."""
PROBLEMS_KEPT = 20


@dataclass
class Heard:
    """What alice has heard so far."""

    gaps: list[float] = field(default_factory=list)  # seconds between two pieces of one stream
    firsts: list[float] = field(default_factory=list)  # seconds until a stream's first piece
    whole: int = 0  # streams that came to their end
    refused: int = 0  # streams without an answer
    broken: int = 0  # streams without a proper end
    problems: list[str] = field(default_factory=list)  # the first few, in words

    def note(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(problem)


class Alice:
    """So many streams, each followed by the next one. `heard` may be replaced at any time: what
    comes then is written there."""

    def __init__(self, url: str, key: str, streams: int, tokens: int) -> None:
        self._streams, self._tokens = streams, tokens
        self._client = connected(url, streams, key=key, timeout=SILENCE)
        self.heard = Heard()
        self._since: dict[int, float] = {}
        """By stream: when it was asked for, or its last piece came."""

    async def __aenter__(self) -> Alice:
        self._tasks = [asyncio.create_task(self._follow(i)) for i in range(self._streams)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    def longest_silence(self) -> float:
        """Seconds since a stream was heard last, of the one that has waited longest."""
        now = time.monotonic()
        return max((now - since for since in self._since.values()), default=0.0)

    async def _follow(self, number: int) -> None:
        asked = 0
        while True:
            await self._one(number, 1_000_003 * number + asked)
            asked += 1

    async def _one(self, number: int, seed: int) -> None:
        body = {
            "prompt": prompt_ids(40, seed),
            "max_tokens": self._tokens,
            "seed": seed,
            "ignore_eos": True,
        }
        self._since[number] = time.monotonic()
        try:
            await self._read(number, body)
        except Refused as error:
            self.heard.refused += 1
            self.heard.note(str(error))
            await asyncio.sleep(0.1)
        except (RuntimeError, httpx.HTTPError) as error:
            self.heard.broken += 1
            self.heard.note(repr(error))
            await asyncio.sleep(0.1)

    async def _read(self, number: int, body: dict[str, object]) -> None:
        first, finish = True, None
        async for event in events(self._client, body):
            now = time.monotonic()
            (self.heard.firsts if first else self.heard.gaps).append(now - self._since[number])
            self._since[number], first = now, False
            for choice in event.get("choices", ()):
                finish = choice["finish_reason"] or finish
        if finish != "length":
            raise RuntimeError(f"a stream ended with {finish}")
        self.heard.whole += 1
