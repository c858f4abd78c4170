"""What it costs running streams that all they compute is written to disk.

    python -m loadtest.disk_kv_cost                # a minute
    python -m loadtest.disk_kv_cost --pairs 20 --output FOLDER

Bursts of streams run in turn on two servers, one of which has a tier on disk. The time that all of
a server's processes compute is the steadier figure of the two: nobody else's work is in it.
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
KINDS = {"seconds": "from begin to end", "computed": "computed by all threads"}
VERBS = {"seconds": "a burst takes", "computed": "its server's threads compute"}
AFTERWARDS = 0.3
"""Seconds in which the last blocks are written; what that computes counts, too."""
COLUMNS = {
    f"ms for {STREAMS} streams, {PROMPT} + {ANSWER} tokens each": "{name}",
    "bursts": "{count}",
    "p50": "{p50:.0f}",
    "max": "{max:.0f}",
}

Burst = dict[str, float]
"""By each of KINDS."""


def measure(flags: Flags) -> Document:
    pairs = costs(flags.pairs)
    ratios = {kind: _ratios(pairs, kind) for kind in KINDS}
    cost = {kind: statistics.median(each) - 1 for kind, each in ratios.items()}
    return {"serve": SERVE, "pairs": pairs, "cost": cost}


def faults(document: Document) -> bool:
    """Whether it costs more than it may."""
    return any(cost > MOST_COST for cost in document["cost"].values())


def costs(pairs: int) -> list[dict[str, Burst]]:
    """Of a burst of streams on a server without the tier and on one with it, in turn."""
    with (
        tempfile.TemporaryDirectory(prefix="disk-kv-") as folder,
        Server(*SERVE) as without,
        Server("--disk-kv-dir", folder, *SERVE) as kept,
    ):
        return asyncio.run(bursts({"without": without, "with": kept}, pairs))


async def bursts(servers: dict[str, Server], pairs: int) -> list[dict[str, Burst]]:
    found: list[dict[str, Burst]] = []
    for pair in range(pairs + 1):
        order = list(servers.items())
        figures = {}
        for name, server in order if pair % 2 else order[::-1]:
            async with connected(server.url, STREAMS) as client:
                computed, begun = server.processor_time(), time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    for stream in range(STREAMS):
                        group.create_task(burst(client, pair * STREAMS + stream))
                seconds = time.perf_counter() - begun
            await asyncio.sleep(AFTERWARDS)
            computed = server.processor_time() - computed
            figures[name] = {"seconds": seconds, "computed": computed}
        say(f"{figures}")
        found.append(figures)
    return found[1:]  # The first warms both.


async def burst(client: httpx.AsyncClient, salt: int) -> None:
    await listen(client, {"prompt": prompt_ids(PROMPT, 1000 + salt), "max_tokens": ANSWER})


def markdown(document: Document) -> str:
    pairs = document["pairs"]
    rows = [
        {
            "name": f"{KINDS[kind]}, {name} a tier on disk",
            **distribution([each[name][kind] for each in pairs], 1000),
        }
        for kind in KINDS
        for name in ("without", "with")
    ]
    said = ", and ".join(
        f"{VERBS[kind]} {100 * document['cost'][kind]:+.1f} % longer" for kind in KINDS
    )
    each = [sorted(100 * (ratio - 1) for ratio in _ratios(pairs, kind)) for kind in KINDS]
    spread = " and ".join(f"between {kind[0]:+.1f} % and {kind[-1]:+.1f} %" for kind in each)
    return (
        f"{machine_line(document)}\n\n{table(COLUMNS, rows)}\n\n"
        f"With it, {said}: the medians of {len(pairs)} pairs in turn, which lie {spread} "
        f"(promised: {100 * MOST_COST:g} % at most).\n"
    )


def _ratios(pairs: list[dict[str, Burst]], kind: str) -> list[float]:
    return [each["with"][kind] / each["without"][kind] for each in pairs]


FLAGS = {"--pairs": (8, "of bursts")}
COMMAND = Measurement("disk_kv_cost", __doc__, measure, markdown, FLAGS, faults=faults)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
