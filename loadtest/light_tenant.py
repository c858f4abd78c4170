"""How long a light tenant waits for its first token under another's flood, on the real model.

    python -m loadtest.light_tenant                # some four minutes
    python -m loadtest.light_tenant --asks 20 --output /tmp/light

With `--scheduling-policy fair` its p99 may exceed that alone by twice the bound on a step's time.
That bound is the time of a step that is full: here a prompt of the whole budget, asked for alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from loadtest.chaos.served import Served
from loadtest.report.facts import machine_line, now, run_facts
from penstock.bench.load.report import markdown_table

RESULTS = Path(__file__).with_name("results")
BUDGET = 256
SERVE = ("--scheduling-policy", "fair", "--max-num-batched-tokens", str(BUDGET))
SERVE += ("--max-num-seqs", "16", "--max-model-len", "1024")
FLOOD = 40
"""Streams of the heavy tenant, each asking again as soon as it ended."""


def main() -> int:
    """1 where the light tenant waited longer than it may."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.light_tenant")
    parser.add_argument("--asks", type=int, default=100, help="of the light tenant, each way")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    started = now()
    with Served(*SERVE) as served:
        waits = asyncio.run(measure(served.url, options.asks))
    figures = {name: summary(values) for name, values in waits.items()}
    allowed = figures["alone"]["p99"] + 2 * figures["full step"]["p50"]
    facts = run_facts("-m loadtest.light_tenant", sys.argv[1:], started)
    text = report(facts, figures, allowed)
    print(text)
    options.output.mkdir(parents=True, exist_ok=True)
    document = {**facts, "serve": SERVE, "figures": figures, "allowed": allowed, "waits": waits}
    (options.output / "light_tenant.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.output / "light_tenant.md").write_text(text)
    return 0 if figures["under the flood"]["p99"] <= allowed else 1


async def measure(url: str, asks: int) -> dict[str, list[float]]:
    """Seconds to the first token: alone, of a full step, and under the flood."""
    limits = httpx.Limits(max_connections=2 * FLOOD)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120) as client:
        await wait_of(client, "light", ids(30, 1))
        alone = [await wait_of(client, "light", ids(30, 10 + i)) for i in range(asks)]
        full = [await wait_of(client, "light", ids(BUDGET, 1000 + i)) for i in range(20)]
        flood = [asyncio.create_task(heavy(client, number)) for number in range(FLOOD)]
        await asyncio.sleep(3)
        beside = []
        for i in range(asks):
            beside.append(await wait_of(client, "light", ids(30, 2000 + i)))
            await asyncio.sleep(0.2)
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
    return {"alone": alone, "full step": full, "under the flood": beside}


async def heavy(client: httpx.AsyncClient, number: int) -> None:
    """One stream after the other."""
    while True:
        number += FLOOD
        async for _ in tokens_of(client, "heavy", ids(200, 10_000 + number), 300):
            pass


async def wait_of(client: httpx.AsyncClient, key: str, prompt: list[int]) -> float:
    """Seconds to the first token of a short answer."""
    before, first = time.monotonic(), None
    async for _ in tokens_of(client, key, prompt, 2):
        first = first or time.monotonic() - before
    if first is None:
        raise RuntimeError("an answer without a token")
    return first


async def tokens_of(
    client: httpx.AsyncClient, key: str, prompt: list[int], tokens: int
) -> AsyncIterator[str]:
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {await response.aread()!r}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield line


def ids(count: int, salt: int) -> list[int]:
    """A prompt of so many tokens, like no other."""
    return [1000 + (salt * 7919 + i * 31) % 20_000 for i in range(count)]


def summary(waits: list[float]) -> dict[str, float]:
    ordered = sorted(waits)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    return {"count": len(waits), "p50": statistics.median(waits), "p99": p99, "max": ordered[-1]}


def report(facts: dict[str, Any], figures: dict[str, dict[str, float]], allowed: float) -> str:
    cells = [
        [name, str(int(row["count"])), *(f"{1e3 * row[key]:.0f}" for key in ("p50", "p99", "max"))]
        for name, row in figures.items()
    ]
    table = markdown_table(
        ["ms to the light tenant's first token", "asked", "p50", "p99", "max"], cells
    )
    return (
        f"{machine_line(facts)}\n\n{table}\n\n"
        f"Allowed under the flood: p99 alone + 2 full steps = {1e3 * allowed:.0f} ms.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
