"""How long a light tenant waits for its first token under another's flood, on the real model.

    python -m loadtest.light_tenant                # some four minutes
    python -m loadtest.light_tenant --asks 20 --output FOLDER

With `--scheduling-policy fair` its p99 may exceed that alone by twice the bound on a step's time.
That bound is the time of a step that is full: here a prompt of the whole budget, asked for alone.
"""

from __future__ import annotations

import asyncio
import sys

import httpx

from loadtest.report import Document, Flags, Measurement, distribution, machine_line, table
from loadtest.streaming import Streams, beside, listen, prompt_ids
from testing.serving import Server
from testing.streams.reading import connected

BUDGET = 256
SERVE = ("--scheduling-policy", "fair", "--max-num-batched-tokens", str(BUDGET))
SERVE += ("--max-num-seqs", "16", "--max-model-len", "1024")
FLOOD = 40
"""Streams of the heavy tenant, each asking again as soon as it ended."""
COLUMNS = {
    "ms to the light tenant's first token": "{name}",
    "asked": "{count}",
    "p50": "{p50:.0f}",
    "p99": "{p99:.0f}",
    "max": "{max:.0f}",
}


def measure(flags: Flags) -> Document:
    with Server(*SERVE) as server:
        waits = asyncio.run(waits_of(server.url, flags.asks))
    figures = {name: distribution(values) for name, values in waits.items()}
    allowed = figures["alone"]["p99"] + 2 * figures["full step"]["p50"]
    return {"serve": SERVE, "figures": figures, "allowed": allowed, "waits": waits}


def faults(document: Document) -> bool:
    """Whether the light tenant waited longer than it may."""
    return bool(document["figures"]["under the flood"]["p99"] > document["allowed"])


async def waits_of(url: str, asks: int) -> dict[str, list[float]]:
    """Seconds to the first token: alone, of a full step, and under the flood."""
    async with connected(url, 1, key="light") as light, connected(url, FLOOD, key="heavy") as heavy:
        await wait_of(light, 30, 1)
        alone = [await wait_of(light, 30, 10 + i) for i in range(asks)]
        full = [await wait_of(light, BUDGET, 1000 + i) for i in range(20)]
        flooded = []
        flood = Streams(
            heavy, lambda seed: {"prompt": prompt_ids(200, 10_000 + seed), "max_tokens": 300}
        )
        async with beside(flood.repeat() for _ in range(FLOOD)):
            await asyncio.sleep(3)
            for i in range(asks):
                flooded.append(await wait_of(light, 30, 2000 + i))
                await asyncio.sleep(0.2)
    return {"alone": alone, "full step": full, "under the flood": flooded}


async def wait_of(client: httpx.AsyncClient, length: int, salt: int) -> float:
    """Seconds to the first token of a short answer to a prompt of `length` tokens."""
    return (await listen(client, {"prompt": prompt_ids(length, salt), "max_tokens": 2})).first


def markdown(document: Document) -> str:
    waits = document["waits"].items()
    rows = [{"name": name, **distribution(values, 1000)} for name, values in waits]
    return (
        f"{machine_line(document)}\n\n{table(COLUMNS, rows)}\n\n"
        f"Allowed under the flood: p99 alone + 2 full steps = {1e3 * document['allowed']:.0f} ms.\n"
    )


FLAGS = {"--asks": (100, "of the light tenant, each way")}
COMMAND = Measurement("light_tenant", __doc__, measure, markdown, FLAGS, faults=faults)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
