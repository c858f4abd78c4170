"""Streams that send one request after another, and how fast a server answers them all."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from dataclasses import dataclass
from typing import Any

import httpx

from loadtest.speculation.requests import WORKLOADS
from testing.serving import Server

LIMIT = 600.0
"""Seconds for an answer."""
POLL = 0.05
"""Seconds between looks at whether all streams have begun."""
EDGE = 0.01
"""Seconds between looks at whether tokens have come."""
TOKENS = "vllm:generation_tokens_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
KEPT = "vllm:spec_decode_num_accepted_tokens_total"
BEGUN = "vllm:time_to_first_token_seconds_count"
ENDLESS = 1500
"""Tokens of an answer that doesn't end while it is looked at."""


@dataclass(frozen=True)
class Streams:
    """What is sent: streams of one kind of requests, with answers of so many tokens. decoding: of
    which only the middle is looked at, once all of them have begun."""

    name: str  # of WORKLOADS
    count: int
    tokens: int
    decoding: bool = False

    def body(self, key: str, stream: int, number: int) -> dict[str, Any]:
        """The stream's request of that number. The first one's answer is of any length, so that
        streams are at different places of theirs from then on."""
        draws = random.Random(f"{self.name} {self.count} {key} {stream} {number}")
        body = {"temperature": 0.0, "seed": 7, **WORKLOADS[self.name](draws)}
        if self.decoding:
            return {**body, "max_completion_tokens": ENDLESS, "ignore_eos": True}
        tokens = self.tokens if number else 1 + self.tokens * stream // self.count
        return {**body, "max_completion_tokens": tokens}


@dataclass(frozen=True)
class Pace:
    """What a server did in a window of time in which all streams were busy."""

    seconds: float
    tokens: float
    processor_seconds: float  # of all its processes
    drafted: float
    kept: float
    answers: dict[tuple[int, int], str]
    """Answers that ended, by stream and number of the request."""

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def cost(self) -> float:
        """Processor seconds for a token."""
        return self.processor_seconds / self.tokens


async def pace(server: Server, streams: Streams, key: str, seconds: float) -> Pace:
    """Streams that are busy throughout, so that it is the server's rate and not the time until the
    slowest of some answers has ended. seconds: of the window, which is longer where no token comes
    in it. key: of requests that nobody has sent before."""
    answers: dict[tuple[int, int], str] = {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=LIMIT, limits=limits) as client:
        before = await _counted(client)
        sending = [
            asyncio.create_task(_send(client, streams, key, stream, answers))
            for stream in range(streams.count)
        ]
        try:
            while not _are_busy(streams, before, await _counted(client)):
                _raise(sending)
                await asyncio.sleep(POLL)
            first = await _newly_counted(client, sending)
            begun, busy = time.perf_counter(), server.processor_time()
            await asyncio.sleep(seconds)
            last = await _newly_counted(client, sending)
            worked = server.processor_time()
            took = time.perf_counter() - begun
            _raise(sending)
            if streams.decoding and answers:
                raise RuntimeError(f"an answer has ended in the window, after {ENDLESS} tokens")
        finally:
            for each in sending:
                each.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
    counts = {name: last[name] - first[name] for name in last}
    return Pace(took, counts[TOKENS], worked - busy, counts[DRAFTED], counts[KEPT], answers)


async def _newly_counted(
    client: httpx.AsyncClient, sending: list[asyncio.Task[None]]
) -> dict[str, float]:
    """What is counted just when tokens have come. They come several at a time, a quarter of a
    second apart perhaps: a window that begins and ends anywhere between would be off by that."""
    before = await _counted(client)
    while (now := await _counted(client))[TOKENS] == before[TOKENS]:
        _raise(sending)
        await asyncio.sleep(EDGE)
    return now


def _are_busy(streams: Streams, before: dict[str, float], now: dict[str, float]) -> bool:
    """Whether what is looked at may begin."""
    if streams.decoding:
        return now[BEGUN] >= before[BEGUN] + streams.count
    return now[TOKENS] >= before[TOKENS] + 2 * streams.count


async def _send(
    client: httpx.AsyncClient,
    streams: Streams,
    key: str,
    stream: int,
    answers: dict[tuple[int, int], str],
) -> None:
    """One request after another, until it is cancelled."""
    for number in itertools.count():
        body = json.dumps(streams.body(key, stream, number))
        reply = await client.post("/v1/chat/completions", content=body)
        reply.raise_for_status()
        answers[stream, number] = reply.json()["choices"][0]["message"]["content"]


def _raise(sending: list[asyncio.Task[None]]) -> None:
    """Raises what a stream has failed with."""
    for each in sending:
        if each.done():
            each.result()


async def _counted(client: httpx.AsyncClient) -> dict[str, float]:
    found = dict.fromkeys((TOKENS, DRAFTED, KEPT, BEGUN), 0.0)
    for line in (await client.get("/metrics")).text.splitlines():
        name = line.partition("{")[0]
        if name in found:
            found[name] += float(line.rpartition(" ")[2])
    return found
