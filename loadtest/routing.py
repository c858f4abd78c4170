"""Two engine cores behind one gateway: prefix affinity against round robin.

    python -m loadtest.routing                     # some ten minutes
    python -m loadtest.routing --smoke --output FOLDER

Prompts of a number of groups, each with a long beginning of its own that its prompts share, come in
random order over a fixed number of streams. Each run starts a system of its own, with cold caches;
runs of the policies alternate, and all of a round get the same requests. It is done with a roomy KV
pool, and with one in which the beginnings of all groups don't fit into one engine core.

Hit rate: tokens of prompts that were found in the KV cache, of all. A perfect one computes each
group's beginning once, in one engine core.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from loadtest.report import Document, Flags, Measurement, machine_line, percentile, table
from loadtest.streaming import Heard, listen
from testing.serving import Server, wait_until
from testing.streams.reading import connected

ENGINES = 2
BLOCK = 16
SETTLED = 120.0
"""Seconds in which the engine cores are ready, and have told of what they have done."""


@dataclass(frozen=True)
class Work:
    """The requests, and in what systems they are asked."""

    groups: int = 16  # whose prompts share their beginning
    prefix: int = 512  # tokens that a request shares with its group
    own: int = 32  # tokens of its own
    output: int = 16  # tokens that it asks for
    each: int = 12  # requests of a group
    streams: int = 12  # at once
    settle: bool = False  # whether the gateway knows of no load when a request comes
    runs: int = 3  # of each policy and pool
    policies: tuple[str, ...] = ("prefix", "least-loaded", "round-robin")
    pools: dict[str, int] = field(default_factory=lambda: {"roomy": 2048, "tight": 416})
    """KV blocks of an engine core, by the name that the report gives them."""

    @property
    def requests(self) -> int:
        return self.groups * self.each

    @property
    def tokens(self) -> int:
        """That are to be generated."""
        return self.requests * self.output

    @property
    def best(self) -> float:
        """The highest hit rate that there can be."""
        shared = self.prefix // BLOCK * BLOCK
        return shared * (self.each - 1) / (self.each * (self.prefix + self.own))


SMOKE = Work(
    groups=4,
    prefix=64,
    own=8,
    output=4,
    each=3,
    streams=1,  # One after the other, and each only when the engine cores have told of the one
    settle=True,  # before: so where it goes, and what is found, doesn't depend on speed.
    runs=1,
    policies=("prefix", "round-robin"),
    pools={"roomy": 256},
)


Run = dict[str, Any]
"""One policy's figures in one system.

cached: share of the prompts' tokens.  rate: requests a second.  first, first_p95: seconds to the
first token.  largest: share of the tokens that the busier engine core generated.  processor:
seconds of all processes for each request.
"""


def measure(flags: Flags) -> Document:
    """All runs, the policies in turn."""
    work = SMOKE if flags.smoke else Work(runs=flags.runs)
    runs = [
        one_run(work, pool, blocks, policy, seed=number)
        for pool, blocks in work.pools.items()
        for number in range(work.runs)
        for policy in work.policies
    ]
    return {"work": asdict(work), "runs": runs}


def one_run(work: Work, pool: str, blocks: int, policy: str, seed: int) -> Run:
    """In a system that has seen nothing yet."""
    length = work.prefix + work.own + work.output + BLOCK
    serve = ("--data-parallel-size", str(ENGINES), "--routing", policy)
    serve += ("--num-kv-blocks", str(blocks), "--max-model-len", str(length))
    with Server(*serve) as server:
        wait_until(lambda: each_engine(server, "ready") == [True] * ENGINES, SETTLED)
        before = server.processor_time()
        answers, seconds = asyncio.run(ask_all(server, work, seed))
        processor = server.processor_time() - before
        wait_told(server, work.tokens)
        shares = each_engine(server, "tokens_generated")
    waits = [answer.first for answer in answers]
    usages = [answer.events[-1]["usage"] for answer in answers]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return {
        "pool": pool,
        "policy": policy,
        "cached": cached / sum(usage["prompt_tokens"] for usage in usages),
        "rate": len(answers) / seconds,
        "first": statistics.median(waits),
        "first_p95": percentile(waits, 0.95),
        "largest": max(shares) / sum(shares),
        "processor": processor / len(answers),
    }


def each_engine(server: Server, name: str) -> list[Any]:
    """That field of each engine core's state."""
    _, state = server.get("/status")
    return [engine[name] for engine in state["engines"]]


def wait_told(server: Server, tokens: int) -> None:
    """Until the engine cores have told that they generated so many."""
    wait_until(lambda: sum(each_engine(server, "tokens_generated")) == tokens, SETTLED)


async def ask_all(server: Server, work: Work, seed: int) -> tuple[list[Heard], float]:
    """Every request of the work, and the seconds it took."""
    waiting = iter(prompts(work, seed))
    answers: list[Heard] = []
    body = {"max_tokens": work.output, "seed": 0, "stream_options": {"include_usage": True}}

    async def stream(client: httpx.AsyncClient) -> None:
        for prompt in waiting:
            answers.append(await listen(client, {"prompt": prompt, **body}))
            if work.settle:
                wait_told(server, len(answers) * work.output)

    begun = time.monotonic()
    async with connected(server.url, work.streams) as client, asyncio.TaskGroup() as group:
        for _ in range(work.streams):
            group.create_task(stream(client))
    return answers, time.monotonic() - begun


def prompts(work: Work, seed: int) -> list[list[int]]:
    """Token ids; no two groups, and no two of a group, have more in common than they are to."""
    rng = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [rng.randrange(1000, 40_000) for _ in range(count)]

    shared = [ids(work.prefix) for _ in range(work.groups)]
    made = [[*prefix, *ids(work.own)] for prefix in shared for _ in range(work.each)]
    rng.shuffle(made)
    return made


COLUMNS = {
    "KV pool": "{pool} ({blocks} blocks)",
    "routing": "{policy}",
    "hit rate": "{cached:.1f} %",
    "requests/s": "{rate:.2f}",
    "against round robin": "{ratio:.2f} ×",
    "ms to first token": "{first:.0f}",
    "p95": "{first_p95:.0f}",
    "CPU ms of a request": "{processor:.0f}",
    "busier engine core": "{largest:.0f} %",
}
SCALES = {"cached": 100, "first": 1000, "first_p95": 1000, "processor": 1000, "largest": 100}
"""What shares and seconds are shown times."""


def markdown(document: Document) -> str:
    work = Work(**document["work"])
    rows: list[dict[str, Any]] = []
    for pool, blocks in work.pools.items():
        of = {policy: medians(document["runs"], pool, policy) for policy in work.policies}
        for policy, found in of.items():
            shown = {name: SCALES.get(name, 1) * value for name, value in found.items()}
            ratio = found["rate"] / of["round-robin"]["rate"]
            rows.append({"pool": pool, "blocks": blocks, "policy": policy, "ratio": ratio, **shown})
    return (
        f"{machine_line(document)}\n\n{work.requests} requests of {work.groups} groups over "
        f"{work.streams} streams to {ENGINES} engine cores: {work.prefix} shared tokens, "
        f"{work.own} of their own, {work.output} to be generated. At best "
        f"{100 * work.best:.1f} % of the prompts' tokens can be found. Medians of {work.runs}.\n\n"
        f"{table(COLUMNS, rows)}\n"
    )


def medians(runs: list[Run], pool: str, policy: str) -> dict[str, float]:
    """Of each figure."""
    mine = [run for run in runs if (run["pool"], run["policy"]) == (pool, policy)]
    names = [name for name in mine[0] if name not in ("pool", "policy")]
    return {name: statistics.median(run[name] for run in mine) for name in names}


FLAGS = {
    "--smoke": (False, "a run of each that takes seconds"),
    "--runs": (Work.runs, "of each policy and pool"),
}
COMMAND = Measurement("routing", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
