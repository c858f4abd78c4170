"""Two engine cores behind one gateway: prefix affinity against round robin.

    python -m loadtest.routing                     # some ten minutes
    python -m loadtest.routing --smoke --output /tmp/routing

Prompts of a number of groups, each with a long beginning of its own that its prompts share, come in
random order over a fixed number of streams. Each run starts a system of its own, with cold caches;
runs of the policies alternate, and all of a round get the same requests. It is done with a roomy KV
pool, and with one in which the beginnings of all groups don't fit into one engine core.

Hit rate: tokens of prompts that were found in the KV cache, of all. A perfect one computes each
group's beginning once, in one engine core. Results go to results/routing.json, .md and .png.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from loadtest.report.chart import chart
from loadtest.report.facts import machine_line
from loadtest.report.figures import percentile
from loadtest.report.files import Facts, Report, parser
from loadtest.streaming import connected, events
from penstock.bench.load.report import markdown_table
from testing.serving import Server

PROGRAM = "-m loadtest.routing"
ENGINES = 2
BLOCK = 16


@dataclass(frozen=True)
class Work:
    """The requests, and in what systems they are asked."""

    groups: int = 16  # whose prompts share their beginning
    prefix: int = 512  # tokens that a request shares with its group
    own: int = 32  # tokens of its own
    output: int = 16  # tokens that it asks for
    each: int = 12  # requests of a group
    streams: int = 12  # at once
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
    streams=1,  # One after the other, so that what is found in the cache doesn't depend on speed.
    runs=1,
    policies=("prefix", "round-robin"),
    pools={"roomy": 256},
)


@dataclass(frozen=True)
class Run:
    """One policy's figures in one system."""

    pool: str
    policy: str
    cached: float  # share of the prompts' tokens
    rate: float  # requests a second
    first: float  # seconds to the first token: the median's
    first_p95: float
    largest: float  # share of the tokens that the busier engine core generated
    processor: float  # seconds of all processes for each request


@dataclass
class Answer:
    prompt: int  # tokens
    cached: int  # tokens
    first: float  # seconds to the first token


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    command = parser(PROGRAM, __doc__.splitlines()[0])
    command.add_argument("--smoke", action="store_true", help="a run of each that takes seconds")
    command.add_argument("--runs", type=int, help="of each policy and pool")
    flags = command.parse_args(arguments)
    work = SMOKE if flags.smoke else Work(runs=flags.runs or Work.runs)
    report = Report("routing", PROGRAM, flags, arguments)
    runs = list(measure(work))
    report.finish(
        {"work": asdict(work), "runs": [asdict(run) for run in runs]},
        lambda facts: table(facts, work, runs),
        draw=lambda path: draw(work, runs, path),
    )
    return 0


def measure(work: Work) -> Iterator[Run]:
    """All runs, the policies in turn."""
    for pool, blocks in work.pools.items():
        for number in range(work.runs):
            for policy in work.policies:
                yield one_run(work, pool, blocks, policy, seed=number)


def one_run(work: Work, pool: str, blocks: int, policy: str, seed: int) -> Run:
    """In a system that has seen nothing yet."""
    length = work.prefix + work.own + work.output + BLOCK
    serve = ("--data-parallel-size", str(ENGINES), "--routing", policy)
    serve += ("--num-kv-blocks", str(blocks), "--max-model-len", str(length))
    with Server(*serve) as server:
        before = server.processor_time()
        answers, state, seconds = asyncio.run(ask_all(server.url, work, seed))
        processor = server.processor_time() - before
    waits = [answer.first for answer in answers]
    shares = [each["tokens_generated"] for each in state["engines"]]
    return Run(
        pool=pool,
        policy=policy,
        cached=sum(answer.cached for answer in answers) / sum(each.prompt for each in answers),
        rate=len(answers) / seconds,
        first=statistics.median(waits),
        first_p95=percentile(waits, 0.95),
        largest=max(shares) / sum(shares),
        processor=processor / len(answers),
    )


async def ask_all(url: str, work: Work, seed: int) -> tuple[list[Answer], dict[str, Any], float]:
    """Every request of the work, the engine cores' state at the end, and the seconds it took."""
    waiting = iter(prompts(work, seed))
    answers: list[Answer] = []
    async with connected(url, work.streams) as client:
        await all_ready(client)

        async def stream() -> None:
            for prompt in waiting:
                answers.append(await ask(client, prompt, work.output))

        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(work.streams):
                group.create_task(stream())
        seconds = time.monotonic() - begun
        state = await status_when(client, lambda engines: generated(engines) == work.tokens)
    return answers, state, seconds


def generated(engines: list[dict[str, Any]]) -> int:
    """Tokens, as far as the engine cores have told."""
    return sum(each["tokens_generated"] for each in engines)


async def all_ready(client: httpx.AsyncClient) -> None:
    """Raises TimeoutError."""
    await status_when(
        client, lambda engines: [each["ready"] for each in engines] == [True] * ENGINES
    )


async def status_when(
    client: httpx.AsyncClient, holds: Callable[[list[dict[str, Any]]], bool]
) -> dict[str, Any]:
    """The first /status whose engine cores are as wanted. Raises TimeoutError."""
    async with asyncio.timeout(120):
        while True:
            state: dict[str, Any] = (await client.get("/status")).json()
            if holds(state["engines"]):
                return state
            await asyncio.sleep(0.1)


async def ask(client: httpx.AsyncClient, prompt: list[int], output: int) -> Answer:
    """One stream."""
    body = {"prompt": prompt, "max_tokens": output, "ignore_eos": True, "seed": 0}
    begun, first = time.monotonic(), None
    usage: dict[str, Any] = {}
    async for event in events(client, {**body, "stream_options": {"include_usage": True}}):
        first = first or time.monotonic() - begun
        usage = event.get("usage") or usage
    if first is None or not usage:
        raise RuntimeError("an answer without a token, or without its usage")
    return Answer(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], first)


def prompts(work: Work, seed: int) -> list[list[int]]:
    """Token ids; no two groups, and no two of a group, have more in common than they are to."""
    rng = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [rng.randrange(1000, 40_000) for _ in range(count)]

    shared = [ids(work.prefix) for _ in range(work.groups)]
    made = [[*prefix, *ids(work.own)] for prefix in shared for _ in range(work.each)]
    rng.shuffle(made)
    return made


def medians(runs: list[Run], pool: str, policy: str) -> dict[str, float]:
    """Of each figure."""
    mine = [asdict(run) for run in runs if (run.pool, run.policy) == (pool, policy)]
    names = [name for name in mine[0] if name not in ("pool", "policy")]
    return {name: statistics.median(run[name] for run in mine) for name in names}


def table(facts: Facts, work: Work, runs: list[Run]) -> str:
    """Markdown."""
    head = ["KV pool", "routing", "hit rate", "requests/s", "against round robin"]
    head += ["ms to first token", "p95", "CPU ms of a request", "busier engine core"]
    rows = []
    for pool, blocks in work.pools.items():
        turn = medians(runs, pool, "round-robin")["rate"]
        for policy in work.policies:
            row = medians(runs, pool, policy)
            cells = [f"{100 * row['cached']:.1f} %", f"{row['rate']:.2f}"]
            cells.append(f"{row['rate'] / turn:.2f} ×")
            cells += [f"{1e3 * row[name]:.0f}" for name in ("first", "first_p95", "processor")]
            rows.append(
                [f"{pool} ({blocks} blocks)", policy, *cells, f"{100 * row['largest']:.0f} %"]
            )
    return (
        f"{machine_line(facts)}\n\n{work.requests} requests of {work.groups} groups over "
        f"{work.streams} streams to {ENGINES} engine cores: {work.prefix} shared tokens, "
        f"{work.own} of their own, {work.output} to be generated. At best "
        f"{100 * work.best:.1f} % of the prompts' tokens can be found. Medians of {work.runs}.\n\n"
        f"{markdown_table(head, rows)}\n"
    )


def draw(work: Work, runs: list[Run], path: Path) -> None:
    """Hit rate and throughput, a bar for each policy and pool, a point for each run."""
    wide = 0.8 / len(work.policies)
    figures = (("cached", 100.0, "hit rate, %"), ("rate", 1.0, "requests a second"))
    with chart(path, columns=2, size=(9, 3.6)) as panels:
        for panel, (name, scale, label) in zip(panels, figures, strict=True):
            for place, policy in enumerate(work.policies):
                at = [n + (place - 1) * wide for n in range(len(work.pools))]
                heights = [scale * medians(runs, pool, policy)[name] for pool in work.pools]
                panel.bar(at, heights, wide * 0.92, label=policy, alpha=0.75)
                for run in runs:
                    if run.policy == policy:
                        x = at[list(work.pools).index(run.pool)]
                        panel.plot(x, scale * getattr(run, name), "k.", markersize=4)
            panel.set_xticks(range(len(work.pools)), [f"{pool} KV pool" for pool in work.pools])
            panel.set_ylabel(label)
            panel.set_ylim(bottom=0)
        panels[0].axhline(100 * work.best, color="grey", linestyle=":", linewidth=1)
        panels[1].legend(frameon=False, fontsize="small")


if __name__ == "__main__":
    sys.exit(main())
