"""What it costs running streams that all they compute is written to disk.

    python -m loadtest.disk_kv_cost                # a minute
    python -m loadtest.disk_kv_cost --pairs 20 --output FOLDER

Bursts of streams run in turn on two servers, one of which has a tier on disk.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time

import httpx

from loadtest.report import Document, Flags, Measurement, distribution, machine_line, say, table
from loadtest.streaming import listen, prompt_ids
from testing.serving import Server
from testing.streams.reading import connected

SERVE = ("--max-model-len", "1024", "--max-num-seqs", "16")
STREAMS, PROMPT, ANSWER = 8, 100, 48
MOST_COST = 0.02
"""It promises: so much longer at most."""
COLUMNS = {
    f"ms for {STREAMS} streams, {PROMPT} + {ANSWER} tokens each": "{name}",
    "bursts": "{count}",
    "p50": "{p50:.0f}",
    "max": "{max:.0f}",
}


def measure(flags: Flags) -> Document:
    pairs = costs(flags.pairs)
    cost = statistics.median(each["with"] / each["without"] for each in pairs) - 1
    return {"serve": SERVE, "pairs": pairs, "cost": cost}


def faults(document: Document) -> bool:
    """Whether it costs more than it may."""
    return bool(document["cost"] > MOST_COST)


def costs(pairs: int) -> list[dict[str, float]]:
    """Seconds of a burst of streams on a server without the tier and on one with it, in turn."""
    with (
        tempfile.TemporaryDirectory(prefix="disk-kv-") as folder,
        Server(*SERVE) as without,
        Server("--disk-kv-dir", folder, *SERVE) as kept,
    ):
        servers = {"without": without.url, "with": kept.url}
        return asyncio.run(bursts(servers, pairs))


async def bursts(servers: dict[str, str], pairs: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    for pair in range(pairs + 1):
        order = list(servers.items())
        seconds = {}
        for name, url in order if pair % 2 else order[::-1]:
            async with connected(url, STREAMS) as client:
                begun = time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    for stream in range(STREAMS):
                        group.create_task(burst(client, pair * STREAMS + stream))
                seconds[name] = time.perf_counter() - begun
        say(f"{seconds}")
        found.append(seconds)
    return found[1:]  # The first warms both.


async def burst(client: httpx.AsyncClient, salt: int) -> None:
    await listen(client, {"prompt": prompt_ids(PROMPT, 1000 + salt), "max_tokens": ANSWER})


def markdown(document: Document) -> str:
    pairs = document["pairs"]
    rows = [
        {"name": f"{name} a tier on disk", **distribution([each[name] for each in pairs], 1000)}
        for name in ("without", "with")
    ]
    each = sorted(100 * (pair["with"] / pair["without"] - 1) for pair in pairs)
    return (
        f"{machine_line(document)}\n\n{table(COLUMNS, rows)}\n\n"
        f"With it, a burst takes {100 * document['cost']:+.1f} % longer: the median of "
        f"{len(pairs)} pairs in turn, which lie between {each[0]:+.1f} % and {each[-1]:+.1f} % "
        f"(promised: {100 * MOST_COST:g} % at most).\n"
    )


FLAGS = {"--pairs": (8, "of bursts")}
COMMAND = Measurement("disk_kv_cost", __doc__, measure, markdown, FLAGS, faults=faults)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
