"""Ordinary streams of one tenant, and how long they wait between two pieces."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

SILENCE = 300.0
"""Seconds without a byte after which a stream is broken."""
PROBLEMS_KEPT = 20


@dataclass
class Heard:
    """gaps: seconds between two pieces of one stream.  firsts: until a stream's first piece.
    refused, broken: streams without an answer, and without a proper end; problems: the first few,
    in words."""

    gaps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    whole: int = 0
    refused: int = 0
    broken: int = 0
    problems: list[str] = field(default_factory=list)

    def note(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(problem)


class Alice:
    """So many streams, each followed by the next one. `heard` may be replaced at any time: what
    comes then is written there."""

    def __init__(self, url: str, key: str, streams: int, tokens: int) -> None:
        self._streams, self._tokens = streams, tokens
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=SILENCE,
            limits=httpx.Limits(max_connections=None),
            headers={"authorization": f"Bearer {key}"},
        )
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
            "prompt": [1000 + (seed * 7919 + i * 31) % 20_000 for i in range(40)],
            "max_tokens": self._tokens,
            "seed": seed,
            "ignore_eos": True,
            "stream": True,
        }
        self._since[number] = time.monotonic()
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    self.heard.refused += 1
                    text = (await response.aread())[:200]
                    self.heard.note(f"status {response.status_code}: {text!r}")
                    await asyncio.sleep(0.1)
                else:
                    await self._read(number, response)
        except httpx.HTTPError as error:
            self.heard.broken += 1
            self.heard.note(repr(error))
            await asyncio.sleep(0.1)

    async def _read(self, number: int, response: httpx.Response) -> None:
        first, finish = True, None
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.monotonic()
            (self.heard.firsts if first else self.heard.gaps).append(now - self._since[number])
            self._since[number], first = now, False
            chunk: dict[str, Any] = json.loads(line[6:])
            if chunk.get("error"):
                self.heard.note(f"error in the stream: {chunk['error']}")
            for choice in chunk.get("choices", ()):
                finish = choice["finish_reason"] or finish
        if finish == "length":
            self.heard.whole += 1
        else:
            self.heard.broken += 1
            self.heard.note(f"a stream ended with {finish}")
