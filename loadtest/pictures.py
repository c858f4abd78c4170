"""What pictures cost a server, and what they cost those who show none.

    python -m loadtest.pictures                    # some five minutes
    python -m loadtest.pictures --requests 16 --distinct 4 --seconds 5 --output FOLDER

Requests that all come at once, with one 448 × 448 picture each, a few of them distinct: how many
pictures are prepared and encoded, what is sent, when the first token comes. Streams of text alone,
and beside pictures that nobody has shown before. And preparing alone, with one process and with
two. Two models in LLaVA's shape: the tiny trained one, and a larger one with random weights, which
is also served with `--short-step-ms 10`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from deploy.local import free_port
from loadtest.pictures_prepared import prepared_per_second
from loadtest.report.facts import machine_line
from loadtest.report.figures import distribution
from loadtest.report.files import Document, Measurement, say
from loadtest.report.table import table
from loadtest.streaming import beside
from testing.serving import Server
from testing.streams.reading import connected, events
from testing.trained.seeing import FOLDER
from testing.trained.seeing.exam import file_of
from testing.trained.seeing.pictures import EVERY

SIDE = 448
FLAGS = ("--max-model-len", "1024", "--max-num-seqs", "80", "--media-processes", "2")
EVEN = ("--short-step-ms", "10")
"""Further ones, for text that comes evenly beside prompts."""
TEXTS = 4
"""Streams of text at a time."""
PACE = 0.25
"""Seconds between two pictures beside the streams of text."""
ALLOWED = 0.005
"""Seconds that the p99 of the streams' gaps may move by."""
COUNTED = {
    "prepared": "penstock:media_prepared_total",
    "encoded": 'penstock:encoder_items_total{outcome="encoded"}',
    "sent": "penstock:encoder_bytes_total",
}
FIRST = {
    "model": "{model}",
    "requests": "{requests}",
    "distinct pictures": "{distinct}",
    "prepared": "{prepared:.0f}",
    "encoded": "{encoded:.0f}",
    "KiB to the worker": "{kib:.0f}",
    "s until all have ended": "{seconds:.2f}",
    "ms to the first token, p50": "{p50:.0f}",
    "p99": "{p99:.0f}",
}
BESIDE = {
    "model": "{model}",
    "ms between two tokens of a text": "{name}",
    "tokens": "{count}",
    "p50": "{p50:.2f}",
    "p99": "{p99:.2f}",
    "max": "{max:.1f}",
}
UNITS = {"count": 1, "p50": 1000, "p99": 1000, "max": 1000}
"""Of a column of BESIDE, in what is kept of the gaps, which are seconds."""
PREPARED = {
    "pictures prepared a second": "{name}",
    "1 process": "{one:.0f}",
    "2 processes": "{two:.0f}",
    "ratio": "{ratio:.2f}",
}


def measure(flags: argparse.Namespace) -> Document:
    with tempfile.TemporaryDirectory() as folder:
        large = larger(Path(folder))
        models = {
            "trained, 0.3 M": (FOLDER, ()),
            "random, 49 M": (large, ()),
            "the same, short steps": (large, EVEN),
        }
        rows = {name: served(name, path, more, flags) for name, (path, more) in models.items()}
    say("preparing alone")
    return {
        "flags": FLAGS,
        "first": [row["first"] for row in rows.values()],
        "gaps": {name: row["gaps"] for name, row in rows.items()},
        "prepared": prepared_per_second(FOLDER, flags.distinct * 4),
    }


def larger(folder: Path) -> Path:
    """Writes a model of the same family with random weights: 256 embeddings of a picture."""
    import torch
    from transformers import LlavaForConditionalGeneration

    from testing.trained.seeing.hub_folder import Shape, config, processor, save, tokenizer

    shape = Shape(
        side=224, patch=14, width=512, inner=1408, tower_layers=8, layers=8, heads=8, kv_heads=4
    )
    torch.manual_seed(1)
    ours = processor(tokenizer(), shape)
    model = LlavaForConditionalGeneration(config(ours.tokenizer, shape))
    save(model.to(torch.bfloat16), ours, folder)
    return folder


def served(name: str, path: Path, more: Sequence[str], flags: argparse.Namespace) -> dict[str, Any]:
    say(f"{name}: {flags.requests} requests, {flags.distinct} pictures")
    port = free_port()
    with Server(str(path), *FLAGS, *more, "--engine-metrics-port", str(port)) as server:
        metrics = f"{server.url}/metrics", f"http://127.0.0.1:{port}/metrics"
        return asyncio.run(_measured(name, server.url, metrics, flags))


async def _measured(
    name: str, url: str, metrics: Sequence[str], flags: argparse.Namespace
) -> dict[str, Any]:
    fresh = itertools.count()
    async with connected(url, flags.requests) as client:
        await wait_of(client, body(next(fresh)))
        shown = [next(fresh) for _ in range(flags.distinct)]
        bodies = [body(shown[number % flags.distinct]) for number in range(flags.requests)]
        before, begun = await counts(client, metrics), time.perf_counter()
        waits = await asyncio.gather(*(wait_of(client, each) for each in bodies))
        seconds, after = time.perf_counter() - begun, await counts(client, metrics)
        alone = await text_gaps(client, flags.seconds)
        async with beside([keep_showing(client, fresh)]):
            crowded = await text_gaps(client, flags.seconds)
    moved = {key: after[key] - before[key] for key in COUNTED}
    first = {"model": name, "requests": flags.requests, "distinct": flags.distinct, **moved}
    first |= {"kib": moved["sent"] / 1024, "seconds": seconds, "waits": list(waits)}
    # Of a hundred thousand gaps: what a reader asks of them.
    gaps = {"alone": distribution(alone), "beside pictures": distribution(crowded)}
    return {"first": first, "gaps": gaps}


def body(seed: int) -> dict[str, Any]:
    """A question about the picture with that number."""
    picture = file_of(EVERY[seed % len(EVERY)], 100_000 + 3 * seed + 1, SIDE, SIDE)
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is in the picture?"},
    ]
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True}


async def wait_of(client: httpx.AsyncClient, asked: dict[str, Any]) -> float:
    """Seconds to the first token of the answer, which is read to its end."""
    begun, first = time.perf_counter(), 0.0
    async for event in events(client, asked, "/v1/chat/completions"):
        if not first and any(each["delta"].get("content") for each in event["choices"]):
            first = time.perf_counter() - begun
    return first or time.perf_counter() - begun


async def keep_showing(client: httpx.AsyncClient, fresh: itertools.count[int]) -> None:
    """Pictures that nobody has shown before, one after the other, at a steady pace."""
    for seed in fresh:
        asked = await asyncio.to_thread(body, seed)
        await asyncio.gather(wait_of(client, asked), asyncio.sleep(PACE))


async def text_gaps(client: httpx.AsyncClient, seconds: float) -> list[float]:
    """Seconds between two tokens of streams without pictures, several at a time."""
    until = time.monotonic() + seconds
    found = await asyncio.gather(*(_gaps(client, number, until) for number in range(TEXTS)))
    return [gap for gaps in found for gap in gaps]


async def _gaps(client: httpx.AsyncClient, number: int, until: float) -> list[float]:
    gaps: list[float] = []
    for salt in itertools.count(number, TEXTS):
        if time.monotonic() > until:
            return gaps
        asked = {"prompt": f"Text {salt}", "max_tokens": 400, "ignore_eos": True, "seed": salt}
        last = 0.0
        async for _ in events(client, asked):
            now = time.perf_counter()
            if last:
                gaps.append(now - last)
            last = now
    return gaps


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


def faults(document: Document) -> bool:
    """Whether a picture was prepared or encoded twice, or streams of text were slowed too much."""
    twice = any(
        row[key] != row["distinct"] for row in document["first"] for key in ("prepared", "encoded")
    )
    return twice or moved_most(document) > ALLOWED


def moved_most(document: Document) -> float:
    """Seconds that the p99 of the gaps moved by, with the tiny model, whose steps take no time:
    what moves is what gateways do."""
    gaps = next(iter(document["gaps"].values()))
    return float(gaps["beside pictures"]["p99"] - gaps["alone"]["p99"])


def markdown(document: Document) -> str:
    first = [row | distribution(row["waits"], 1000) for row in document["first"]]
    rows = [
        {"model": model, "name": name} | {key: kept[key] * unit for key, unit in UNITS.items()}
        for model, gaps in document["gaps"].items()
        for name, kept in gaps.items()
    ]
    prepared = [row | {"ratio": row["two"] / row["one"]} for row in document["prepared"]]
    return (
        f"{machine_line(document)}\n\n{table(FIRST, first)}\n\n{table(BESIDE, rows)}\n\n"
        f"With the trained model the p99 moves by {1e3 * moved_most(document):.1f} ms; "
        f"{1e3 * ALLOWED:.0f} are allowed.\n\n{table(PREPARED, prepared)}\n"
    )


OPTIONS = {
    "--requests": {"type": int, "default": 64, "help": "with a picture each, all at once"},
    "--distinct": {"type": int, "default": 16, "help": "pictures among them"},
    "--seconds": {"type": float, "default": 30.0, "help": "of text streams, each way"},
}
COMMAND = Measurement("pictures", __doc__, measure, markdown, OPTIONS, faults=faults)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
