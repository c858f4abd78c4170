"""Pictures asked about all at once, and streams of text alone and beside pictures."""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from deploy.local import free_port
from loadtest.report import distribution, say
from loadtest.streaming import Streams, beside
from testing.serving import Server
from testing.streams.reading import connected, events
from testing.trained.seeing.exam import file_of
from testing.trained.seeing.pictures import EVERY

SIDE = 448
QUESTION = "What is in the picture?"
FLAGS = ("--max-model-len", "1024", "--max-num-seqs", "80", "--media-processes", "2")
EVEN = ("--short-step-ms", "10")
"""Further ones, for text that comes evenly beside prompts."""
TEXTS = 4
"""Streams of text at a time."""
PACE = 0.25
"""Seconds between two pictures beside the streams of text."""
COUNTED = {
    "prepared": "penstock:media_prepared_total",
    "encoded": 'penstock:encoder_items_total{outcome="encoded"}',
    "sent": "penstock:encoder_bytes_total",
}


@dataclass(frozen=True)
class Load:
    """requests: with a picture each, all at once.  distinct: pictures among them.  seconds: of text
    streams, each way."""

    requests: int
    distinct: int
    seconds: float


def png(seed: int) -> bytes:
    """The picture with that number."""
    return file_of(EVERY[seed % len(EVERY)], 100_000 + 3 * seed + 1, SIDE, SIDE)


def body(seed: int, tokens: int = 8) -> dict[str, Any]:
    """A question about the picture with that number."""
    url = f"data:image/png;base64,{base64.b64encode(png(seed)).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": QUESTION},
    ]
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


async def wait_of(client: httpx.AsyncClient, asked: dict[str, Any]) -> float:
    """Seconds to the first token of the answer, which is read to its end."""
    begun, first = time.perf_counter(), 0.0
    async for event in events(client, asked, "/v1/chat/completions"):
        if not first and any(each["delta"].get("content") for each in event["choices"]):
            first = time.perf_counter() - begun
    return first or time.perf_counter() - begun


def served(name: str, path: Path, more: Sequence[str], load: Load) -> dict[str, Any]:
    say(f"{name}: {load.requests} requests, {load.distinct} pictures")
    port = free_port()
    with Server(str(path), *FLAGS, *more, "--engine-metrics-port", str(port)) as server:
        metrics = f"{server.url}/metrics", f"http://127.0.0.1:{port}/metrics"
        return asyncio.run(_measured(name, server.url, metrics, load))


async def _measured(name: str, url: str, metrics: Sequence[str], load: Load) -> dict[str, Any]:
    fresh = itertools.count()
    async with connected(url, load.requests) as client:
        await wait_of(client, body(next(fresh)))
        shown = [next(fresh) for _ in range(load.distinct)]
        bodies = [body(shown[number % load.distinct]) for number in range(load.requests)]
        before, begun = await counts(client, metrics), time.perf_counter()
        waits = await asyncio.gather(*(wait_of(client, each) for each in bodies))
        seconds, after = time.perf_counter() - begun, await counts(client, metrics)
        alone = await text_gaps(client, load.seconds)
        async with beside([keep_showing(client, fresh)]):
            crowded = await text_gaps(client, load.seconds)
    moved = {key: after[key] - before[key] for key in COUNTED}
    first = {"model": name, "requests": load.requests, "distinct": load.distinct, **moved}
    first |= {"kib": moved["sent"] / 1024, "seconds": seconds, "waits": list(waits)}
    # Of a hundred thousand gaps: what a reader asks of them.
    gaps = {"alone": distribution(alone), "beside pictures": distribution(crowded)}
    return {"first": first, "gaps": gaps}


async def keep_showing(client: httpx.AsyncClient, fresh: itertools.count[int]) -> None:
    """Pictures that nobody has shown before, one after the other, at a steady pace."""
    for seed in fresh:
        asked = await asyncio.to_thread(body, seed)
        await asyncio.gather(wait_of(client, asked), asyncio.sleep(PACE))


async def text_gaps(client: httpx.AsyncClient, seconds: float) -> list[float]:
    """Seconds between two tokens of streams without pictures, several at a time."""
    streams = Streams(client, lambda seed: {"prompt": f"Text {seed}", "max_tokens": 400})
    until = time.monotonic() + seconds
    await asyncio.gather(*(streams.repeat(until) for _ in range(TEXTS)))
    if streams.tally.problems:
        raise RuntimeError(f"streams of text broke: {streams.tally.problems}")
    return streams.tally.gaps


async def counts(client: httpx.AsyncClient, metrics: Sequence[str]) -> dict[str, float]:
    """What gateway and engine core have counted so far."""
    pages = [(await client.get(each)).text for each in metrics]
    lines = "\n".join(pages).splitlines()
    return {
        key: sum(float(line.rpartition(" ")[2]) for line in lines if _is(line, metric))
        for key, metric in COUNTED.items()
    }


def _is(line: str, metric: str) -> bool:
    name, _, label = metric.partition("{")
    return line.startswith((f"{name} ", f"{name}{{")) and label.removesuffix("}") in line
