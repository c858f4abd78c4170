"""Many open requests, one kill -9 of the engine core, and pauses of every process.

    python -m loadtest.recovery                                  # all of it, some ten minutes
    python -m loadtest.recovery --requests 300 --long-requests 4 --pauses 3 --output FOLDER

Real engine core, real front end, a worker that computes nothing. Exit code 1 where a request
failed or said something else than undisturbed, or came back later than it may.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.recovery.listening import Listening, Sample, listening, recovery
from loadtest.report import Document, Flags, Measurement, machine_line
from loadtest.report.table import listed, sections, table, verdict
from testing.processes import RestartableProcess, engine, front_end, model_with_context, worker

UNBOUNDED = ("--max-waiting-requests", "100000", "--max-waiting-tokens", "1000000000")
GOES_ON = 60.0
"""Seconds in which all must go on after a pause."""
SEED = 1
"""The seed of the pauses."""
FIRST_WITHIN = 3.0
ACCEPTED_WITHIN = 30.0
"""Seconds after a kill."""


@dataclass(frozen=True)
class Load:
    """Requests on an engine core and a worker that computes nothing."""

    name: str
    requests: int  # that are to be open at the kill
    prompt: int  # tokens of each
    tokens: int  # that each asks for
    step_seconds: float  # between steps
    at_once: int  # sequences of a step
    step_tokens: int = 16_384
    blocks: int = 65_536

    @property
    def total(self) -> int:
        """Some more, as the first end before the last have come."""
        return self.requests + self.requests // 8

    @property
    def flags(self) -> list[str]:
        """Flags of the engine core."""
        flags = [*UNBOUNDED, "--max-num-seqs", str(self.at_once)]
        flags += ["--max-num-batched-tokens", str(self.step_tokens)]
        return [*flags, "--num-kv-blocks", str(self.blocks)]

    def open_of(self, sample: Sample) -> int:
        """Requests that were accepted and have not ended."""
        return sample.accepted - (self.total - sample.open)


Running = tuple[RestartableProcess, RestartableProcess, Listening]
"""Engine core, worker and front end of a load."""


def loads(options: Flags) -> list[Load]:
    """The loads that see a kill. Few sequences at a time: what was in a step when the engine core
    died is computed alone at first."""
    short = Load("short prompts", options.requests, 30, 128, 0.02, 256)
    most = {"step_tokens": 262_144, "blocks": 262_144}
    long = Load("long prompts", options.long_requests, options.long_prompt, 8, 0.5, 64, **most)
    return [load for load in (short, long) if load.requests]


def storm(options: Flags) -> Load:
    """Long enough to outlast the pauses, and what it takes to go on after each; and all at once, as
    what began only when others end would last as long again."""
    tokens = round(options.pauses * (options.longest + 5) / 0.1)
    return Load("storm", 64, 30, tokens, 0.1, at_once=72)


def measure(options: Flags) -> Document:
    """Each load killed, and then the pauses."""
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        model = model_with_context(Path(folder), options.long_prompt + 1000)
        return asyncio.run(run(model, options))


async def run(model: Path, options: Flags) -> Document:
    kills = []
    for load in loads(options):
        async with running(model, load) as system:
            kills.append(await killed(system, load))
    if not options.pauses:
        return {"kills": kills, "storm": None}
    load = storm(options)
    async with running(model, load) as system:
        return {"kills": kills, "storm": await paused(system, load, options)}


@contextlib.asynccontextmanager
async def running(model: Path, load: Load) -> AsyncIterator[Running]:
    """From when the processes are there; the requests come by and by."""
    with tempfile.TemporaryDirectory(prefix="pst-") as name:
        folder = Path(name)
        with (
            engine(folder, model, load.flags) as core,
            worker(folder, model, load.step_seconds) as null,
        ):
            endpoint = front_end(folder)
            async with listening(endpoint, load.total, load.prompt, load.tokens) as front:
                yield core, null, front


async def killed(system: Running, load: Load) -> dict[str, Any]:
    """The engine core is killed once it has all requests, and is started again at once."""
    core, _, front = system
    await front.until(
        lambda each: each.accepted == load.total or load.open_of(each) >= load.requests
    )
    begun = front.samples[-1]
    blow = time.monotonic()
    core.kill()
    core.start()
    result = await front.result()
    seconds = recovery(front.samples, blow)
    return {
        "load": load.name,
        "requests": load.total,
        "wanted_open": load.requests,
        "open_at_the_kill": load.open_of(begun),
        "prompt_tokens": load.prompt,
        "first_s": seconds.first,
        "accepted_s": seconds.accepted,
        "ended_s": time.monotonic() - blow,
        **result,
    }


async def paused(system: Running, load: Load, options: Flags) -> dict[str, Any]:
    """SIGSTOP of each process in turn; the next one when all has gone on."""
    core, null, front = system
    draw = random.Random(SEED)
    victims = {"engine": core.pid, "worker": null.pid, "front end": front.pid}
    pauses: list[dict[str, Any]] = []
    await front.until(lambda each: each.accepted == load.total)
    for victim, pid in itertools.islice(itertools.cycle(victims.items()), options.pauses):
        seconds = draw.uniform(min(1.0, options.longest), options.longest)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        wanted = front.samples[-1].tokens + load.total  # One more each, as a mean.
        os.kill(pid, signal.SIGCONT)
        since = time.monotonic()
        went_on = await _has_tokens(front, wanted)
        after = time.monotonic() - since
        pauses.append({"victim": victim, "seconds": seconds, "went_on": went_on, "after_s": after})
    return {"pauses": pauses, "requests": load.total, **await front.result()}


async def _has_tokens(front: Listening, wanted: int) -> bool:
    """Whether so many came, or all that there are, while there was time."""
    came = await front.until(lambda each: each.tokens >= wanted, GOES_ON)
    return came or front.outcome is not None


def faults(figures: Document) -> list[str]:
    """What is not as it should be, in words."""
    found = []
    for kill in figures["kills"]:
        name = f"{kill['requests']:,} of {kill['load']}"
        if kill["open_at_the_kill"] < kill["wanted_open"]:
            found.append(f"{name}: only {kill['open_at_the_kill']:,} were open at the kill")
        if kill["wrong"]:
            found.append(f"{name}: {kill['wrong']:,} failed or were different")
        for what, limit in (("first", FIRST_WITHIN), ("accepted", ACCEPTED_WITHIN)):
            seconds = kill[f"{what}_s"]
            if seconds is None or seconds > limit:
                found.append(f"{name}: {what} after {_seconds(seconds)} s, not {limit:g}")
    storm = figures["storm"]
    if storm is not None:
        if storm["wrong"]:
            found.append(f"storm: {storm['wrong']:,} failed or were different")
        stuck = sum(not pause["went_on"] for pause in storm["pauses"])
        if stuck:
            found.append(f"storm: not all went on after {stuck} pauses")
    return found


KILLS = {
    "one kill -9 of the engine core": "{load}",
    "requests": "{requests:,}",
    "tokens of a prompt": "{prompt_tokens:,}",
    "open then": "{open_at_the_kill:,}",
    "first token, s": "{first}",
    "all accepted, s": "{accepted}",
    "all ended, s": "{ended}",
    "equal": "{equal:,}",
    "wrong": "{wrong:,}",
}
PAUSES = {
    "paused": "{victim}",
    "times": "{times}",
    "for, s": "{shortest:.1f} to {longest:.1f}",
    "all went on after, s: median": "{median:.2f}",
    "longest": "{most:.2f}",
}


def markdown(document: Document) -> str:
    storm, runs = document["storm"], list(document["kills"])
    rows = [
        {**kill, **{name: _seconds(kill[f"{name}_s"]) for name in ("first", "accepted", "ended")}}
        for kill in runs
    ]
    parts = [machine_line(document), verdict(faults(document)), table(KILLS, rows)]
    if storm is not None:
        runs.append(storm)
        parts += [
            f"Pauses (SIGSTOP) under {storm['requests']} requests: {storm['equal']} equal to what "
            f"they say undisturbed, {storm['wrong']} failed or different.",
            table(PAUSES, _by_victim(storm["pauses"])),
        ]
    return sections([*parts, listed(line for run in runs for line in run["failed"])])


def _by_victim(pauses: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for victim in dict.fromkeys(pause["victim"] for pause in pauses):
        own = [pause for pause in pauses if pause["victim"] == victim]
        lasted, after = ([pause[name] for pause in own] for name in ("seconds", "after_s"))
        yield {
            "victim": victim,
            "times": len(own),
            "shortest": min(lasted),
            "longest": max(lasted),
            "median": statistics.median(after),
            "most": max(after),
        }


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"


COMMAND = Measurement(
    "recovery",
    __doc__,
    measure,
    markdown,
    {
        "--requests": (20_000, "of short prompts"),
        "--long-requests": (280, ""),
        "--long-prompt": (130_000, "tokens"),
        "--pauses": (18, "the processes in turn"),
        "--longest": (10.0, "pause, seconds"),
    },
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
