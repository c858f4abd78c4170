"""Streamed completions, for measurements that need no more than what comes when."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from testing.streams.reading import Broken, Refused, events

FIRST_ID, IDS = 1_000, 20_000
"""Token ids of prompts: ordinary tokens of the default model."""
PAUSE = 0.1
"""Seconds after a stream that was refused or broke."""
PROBLEMS_KEPT = 20


@dataclass(frozen=True)
class Heard:
    """One answer."""

    events: list[dict[str, Any]]
    first: float  # seconds until the first event
    gaps: list[float]  # seconds between two events


def prompt_ids(count: int, salt: int) -> list[int]:
    """A prompt of so many tokens that begins like no other salt's."""
    return [FIRST_ID + (salt * 7919 + i * 31) % IDS for i in range(count)]


async def listen(client: httpx.AsyncClient, body: dict[str, Any]) -> Heard:
    """A completion of exactly `max_tokens` tokens. Raises Broken."""
    times, heard = [time.perf_counter()], []
    async for event in events(client, {"ignore_eos": True, **body}):
        times.append(time.perf_counter())
        heard.append(event)
    if not heard:
        raise Broken("an answer without a token")
    first, *gaps = (after - before for before, after in itertools.pairwise(times))
    return Heard(heard, first, gaps)


@contextlib.asynccontextmanager
async def beside(coroutines: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Runs the coroutines while the block does, and cancels them at its end."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Tally:
    """What has become of many streams so far."""

    begun: int = 0
    whole: int = 0  # streams that said what they should, to their end
    refused: int = 0  # streams without an answer
    broken: int = 0  # all others
    tokens: int = 0  # of whole streams
    firsts: list[float] = field(default_factory=list)  # seconds until a stream's first piece
    gaps: list[float] = field(default_factory=list)  # seconds between two pieces of one stream
    problems: list[str] = field(default_factory=list)  # the first few, in words

    def note(self, problem: Broken) -> None:
        self.refused += isinstance(problem, Refused)
        self.broken += not isinstance(problem, Refused)
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(str(problem))


class Streams:
    """Streams that are each followed by another.

    body: of the request with that seed.  text: what its answer must say; None: anything.
    tally: may be replaced at any time: what comes then is written there.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        body: Callable[[int], dict[str, Any]],
        text: Callable[[int], str] | None = None,
    ) -> None:
        self._client, self._body, self._text = client, body, text
        self._seeds = itertools.count()
        self.tally = Tally()
        self.since: dict[int, float] = {}
        """Time at which an open stream was asked for, or its last piece came, by its seed."""
        self.silent: set[int] = set()
        """Seeds of open streams whose first piece hasn't come."""

    async def repeat(self, until: float = math.inf) -> None:
        """One stream after the other; none begins after that moment."""
        while time.monotonic() < until:
            seed = next(self._seeds)
            self.tally.begun += 1
            self.since[seed] = time.monotonic()
            self.silent.add(seed)
            try:
                await self._listen(seed)
            except Broken as problem:
                self.tally.note(problem)
                await asyncio.sleep(PAUSE)
            finally:
                del self.since[seed]
                self.silent.discard(seed)

    async def _listen(self, seed: int) -> None:
        pieces: list[str] = []
        body, finish = self._body(seed), None
        async for event in events(self._client, {**body, "seed": seed, "ignore_eos": True}):
            now = time.monotonic()
            (self.tally.gaps if pieces else self.tally.firsts).append(now - self.since[seed])
            self.since[seed] = now
            self.silent.discard(seed)
            for choice in event["choices"]:
                pieces.append(choice["text"])
                finish = choice["finish_reason"] or finish
        said = "".join(pieces)
        expected = said if self._text is None else self._text(seed)
        if said != expected:
            raise Broken(f"{len(said)} of {len(expected)} characters, or others: {said[-80:]!r}")
        if finish != "length":
            raise Broken(f"a stream ended with {finish}")
        self.tally.whole += 1
        self.tally.tokens += body["max_tokens"]
