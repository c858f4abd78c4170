"""Many open requests, one kill -9 of the engine core, and pauses of every process.

    python -m loadtest.recovery                                  # all of it, some ten minutes
    python -m loadtest.recovery --requests 300 --long-requests 4 --pauses 3 --output /tmp/recovery

Real engine core, real front end, a worker that computes nothing. Exit code 1 where a request
failed or said something else than undisturbed, or came back later than it may.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.recovery.listening import PATIENCE, Listening, listening
from loadtest.recovery.report import markdown, passed
from loadtest.recovery.samples import Sample, recovery
from loadtest.report.files import Report, parser
from testing.processes import RestartableProcess, engine, front_end, model_with_context, worker

PROGRAM = "-m loadtest.recovery"
UNBOUNDED = ("--max-waiting-requests", "100000", "--max-waiting-tokens", "1000000000")
VICTIMS = ("engine", "worker", "front end")
GOES_ON = 60.0
"""Seconds in which all must go on after a pause."""


@dataclass(frozen=True)
class Load:
    """Requests on an engine core and a worker that computes nothing."""

    name: str
    requests: int  # that are to be open at the kill
    prompt: int  # tokens of each
    tokens: int  # that each asks for
    step_seconds: float  # between steps
    flags: tuple[str, ...] = ()  # of the engine core

    @property
    def total(self) -> int:
        """Some more, as the first end before the last have come."""
        return self.requests + self.requests // 8

    def open_of(self, sample: Sample) -> int:
        """Requests that were accepted and have not ended."""
        return sample.accepted - (self.total - sample.open)


@dataclass(frozen=True)
class Running:
    """A load on its processes."""

    engine: RestartableProcess
    worker: RestartableProcess
    front: Listening

    def pid_of(self, victim: str) -> int:
        parts = {"engine": self.engine.pid, "worker": self.worker.pid, "front end": self.front.pid}
        return parts[victim]


def loads(options: argparse.Namespace) -> list[Load]:
    """Those that see a kill."""
    # Few at a time: what was in a step when the engine core died is computed alone at first.
    short = ("--max-num-seqs", "256", "--max-num-batched-tokens", "16384")
    long = ("--max-num-seqs", "64", "--max-num-batched-tokens", "262144")
    return [
        Load(
            "short prompts", options.requests, 30, 128, 0.02, (*short, "--num-kv-blocks", "65536")
        ),
        Load(
            "long prompts",
            options.long_requests,
            options.long_prompt,
            8,
            0.5,
            (*long, "--num-kv-blocks", "262144"),
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    command = parser(PROGRAM, __doc__.splitlines()[0])
    command.add_argument("--requests", type=int, default=20_000, help="of short prompts")
    command.add_argument("--long-requests", type=int, default=280)
    command.add_argument("--long-prompt", type=int, default=130_000, help="tokens")
    command.add_argument("--pauses", type=int, default=18, help="the processes in turn")
    command.add_argument("--longest", type=float, default=10.0, help="pause, seconds")
    command.add_argument("--seed", type=int, default=1, help="of the pauses")
    options = command.parse_args(arguments)
    report = Report("recovery", PROGRAM, options, arguments)
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        figures = asyncio.run(measure(Path(folder), options))
    report.finish(figures, lambda facts: markdown(facts, figures))
    return 0 if passed(figures) else 1


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Each load killed, and then the pauses."""
    model = model_with_context(folder, options.long_prompt + 1000)
    kills = []
    for number, load in enumerate(loads(options)):
        if load.requests:
            place = folder / str(number)
            place.mkdir()
            async with running(place, model, load) as system:
                kills.append(await killed(system, load))
    if not options.pauses:
        return {"kills": kills, "storm": None}
    place = folder / "storm"
    place.mkdir()
    # Long enough to outlast the pauses, and what it takes to go on after each.
    tokens = round(options.pauses * (options.longest + 5) / 0.1)
    storm = Load("storm", 64, 30, tokens, 0.1)
    # All at once: what began only when others end would last as long again.
    storm = replace(storm, flags=("--max-num-seqs", str(storm.total)))
    async with running(place, model, storm) as system:
        return {"kills": kills, "storm": await paused(system, storm, options)}


@contextlib.asynccontextmanager
async def running(folder: Path, model: Path, load: Load) -> AsyncIterator[Running]:
    """From when the processes are there; the requests come by and by."""
    flags = [*UNBOUNDED, *load.flags]
    with engine(folder, model, flags) as core, worker(folder, model, load.step_seconds) as null:
        endpoint = front_end(folder)
        async with listening(endpoint, load.total, load.prompt, load.tokens) as front:
            yield Running(core, null, front)


async def killed(system: Running, load: Load) -> dict[str, Any]:
    """The engine core is killed once it has all requests, and is started again at once."""
    front = system.front
    await front.until(
        lambda each: each.accepted == load.total or load.open_of(each) >= load.requests
    )
    begun = front.samples[-1]
    blow = time.monotonic()
    system.engine.kill()
    system.engine.start()
    await _ended(front)
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
        **_outcome(front),
    }


async def paused(system: Running, load: Load, options: argparse.Namespace) -> dict[str, Any]:
    """SIGSTOP of each process in turn; the next one when all has gone on."""
    draw, front = random.Random(options.seed), system.front
    pauses: list[dict[str, Any]] = []
    await front.until(lambda each: each.accepted == load.total)
    for number in range(options.pauses):
        victim = VICTIMS[number % len(VICTIMS)]
        seconds = draw.uniform(min(1.0, options.longest), options.longest)
        pid = system.pid_of(victim)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        stood = front.samples[-1].tokens
        os.kill(pid, signal.SIGCONT)
        since = time.monotonic()
        went_on = await _has_more(front, stood + load.total)  # One more each, as a mean.
        pauses.append(
            {
                "victim": victim,
                "seconds": seconds,
                "went_on": went_on,
                "after_s": time.monotonic() - since,
            }
        )
    await _ended(front)
    return {"pauses": pauses, "requests": load.total, **_outcome(front)}


async def _has_more(front: Listening, tokens: int) -> bool:
    """Whether so many have come, or all that there are, before patience ends."""
    came = await front.until(lambda each: each.tokens >= tokens, GOES_ON)
    return came or front.outcome is not None


async def _ended(front: Listening) -> None:
    """All requests have. Those that haven't after PATIENCE are taken for failed."""
    await front.until(lambda each: False, PATIENCE)


def _outcome(front: Listening) -> dict[str, Any]:
    if front.outcome is None:
        left = front.samples[-1].open if front.samples else None
        return {"equal": 0, "wrong": left, "failed": [f"{left} never ended"], "different": []}
    told = front.outcome
    return {
        "equal": told.equal,
        "wrong": told.wrong,
        "failed": told.failed,
        "different": told.different,
    }


if __name__ == "__main__":
    sys.exit(main())
