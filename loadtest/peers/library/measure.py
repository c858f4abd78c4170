"""Rounds of all work on all systems in turn, one computing at a time."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.peers.library.child import Child, ChildFailed
from loadtest.peers.library.systems import System
from loadtest.peers.library.work import Run, Work
from loadtest.report.files import say
from loadtest.roofline import probe
from loadtest.roofline.probe import Limits, ProbeUnavailable

RUN_TIMEOUT = 120.0
"""Seconds after which a call is given up, and its system with it."""
_WARM_TOKENS = 4


@dataclass
class Outcome:
    """One system's runs."""

    system: System
    runs: dict[str, list[Run]] = field(default_factory=dict)  # by the work's name
    ready_s: float | None = None
    memory_bytes: int | None = None
    once: list[str] = field(default_factory=list)
    """Work that took longer than its patience, and was not repeated."""
    failures: list[str] = field(default_factory=list)  # what went wrong, in order

    def rate(self, work: Work) -> float | None:
        """Median tokens per second; None without a run."""
        runs = self.runs.get(work.name)
        return statistics.median(work.rate(run) for run in runs) if runs else None


@dataclass
class Measurement:
    outcomes: list[Outcome]
    work: Sequence[Work]
    rounds_done: int = 0
    limits: list[Limits] = field(default_factory=list)
    """By a probe before each round, while nothing computed."""
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, each run included."""
        return {
            "rounds": self.rounds_done,
            "notes": self.notes,
            "limits": [limits.to_dict() for limits in self.limits],
            "work": [work.to_dict() for work in self.work],
            "systems": {o.system.name: self._system(o) for o in self.outcomes},
        }

    def _system(self, outcome: Outcome) -> dict[str, Any]:
        return {
            "version": outcome.system.version,
            "note": outcome.system.note,
            "environment": outcome.system.environment,
            "ready_s": outcome.ready_s,
            "memory_bytes": outcome.memory_bytes,
            "once": outcome.once,
            "failures": outcome.failures,
            "work": {
                work.name: {
                    "tokens_per_s": outcome.rate(work),
                    "each_tokens_per_s": [work.rate(run) for run in runs],
                    "runs": [asdict(run) for run in runs],
                }
                for work in self.work
                if (runs := outcome.runs.get(work.name))
            },
        }


def measure(
    systems: Sequence[System],
    work: Sequence[Work],
    *,
    rounds: int,
    budget: float,
    logs: Path,
    save: Callable[[Measurement], None],
    roofline: bool = True,
) -> Measurement:
    """All systems stay loaded; those that don't compute are stopped (SIGSTOP) where they bear it.

    Once the budget (seconds, starts included) is over, no more work is begun.  save is called
    after each piece of work on all systems, so that what was measured outlives a run cut short.
    """
    began = time.monotonic()
    measurement = Measurement([Outcome(system) for system in systems], work)
    with ExitStack() as stack:
        children = _start_all(measurement, logs, stack)
        for number, piece in itertools.product(range(rounds), work):
            since = time.monotonic() - began
            if since > budget:
                measurement.notes.append(
                    f"Ended in round {number + 1} of {rounds}, before {piece.name}: "
                    f"{budget:g} s were over."
                )
                break
            if piece is work[0]:
                say(f"round {number + 1} of {rounds}, {since:.0f} s since the start")
                roofline = roofline and _probe(measurement)
            for outcome in measurement.outcomes:
                child = children.get(outcome.system.name)
                if child is not None and not _take(outcome, child, piece, number):
                    del children[outcome.system.name]
            if piece is work[-1]:
                measurement.rounds_done = number + 1
            save(measurement)
        for outcome in measurement.outcomes:
            if child := children.get(outcome.system.name):
                outcome.memory_bytes = child.memory()
    save(measurement)
    return measurement


def _start_all(measurement: Measurement, logs: Path, stack: ExitStack) -> dict[str, Child]:
    children = {}
    for outcome in measurement.outcomes:
        name = outcome.system.name
        child = Child(outcome.system, logs / f"{name}.log")
        try:
            stack.enter_context(child)
            outcome.ready_s = child.ready_s
            say(f"{name}: loaded in {child.ready_s:.1f} s; warming up")
            for work in measurement.work:
                if outcome.system.does(work):
                    prompts = work.prompts("warm-up", work.warm_streams)
                    child.run(prompts, min(work.output_tokens, _WARM_TOKENS), RUN_TIMEOUT)
        except ChildFailed as error:
            _fail(outcome, child, error)
            continue
        child.pause()
        children[name] = child
    return children


def _take(outcome: Outcome, child: Child, work: Work, number: int) -> bool:
    """One run of one piece of work. False: the system is of no use any more."""
    system = outcome.system
    if not system.does(work) or work.name in outcome.once:
        return True
    prompts = work.prompts(f"round {number}")
    try:
        with _awake(child):
            run = child.run(prompts, work.output_tokens, RUN_TIMEOUT)
    except ChildFailed as error:
        _fail(outcome, child, error)
        return False
    if fault := work.fault(run):
        outcome.failures.append(f"{work.name}: {fault}")
        say(f"{system.name}: {work.name}: {fault}")
        return True
    outcome.runs.setdefault(work.name, []).append(run)
    if run.seconds > work.patience:
        outcome.once.append(work.name)
    say(f"{system.name}: {work.name}: {work.rate(run):,.1f} tok/s in {run.seconds:.1f} s")
    return True


@contextmanager
def _awake(child: Child) -> Iterator[None]:
    child.resume()
    yield
    child.pause()


def _fail(outcome: Outcome, child: Child, error: ChildFailed) -> None:
    outcome.failures.append(str(error))
    say(str(error))
    child.stop(grace=0.5)


def _probe(measurement: Measurement) -> bool:
    """False: there will be no roofline."""
    try:
        measurement.limits.append(probe.measure())
    except ProbeUnavailable as error:
        measurement.notes.append(f"{error}.")
        say(str(error))
        return False
    return True
