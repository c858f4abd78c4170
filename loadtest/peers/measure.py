"""Rounds of all servers in turn, all cells each; the medians of what came out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.peers.cells import Cell
from loadtest.peers.running_server import RunningServer, ServerFailed
from loadtest.peers.servers import Server
from loadtest.report.files import say
from penstock.bench.load.run import run
from penstock.bench.load.statistics import Distribution, Summary
from penstock.bench.load.target import TargetError


@dataclass
class Outcome:
    """One server's runs."""

    server: Server
    runs: dict[str, list[Summary]] = field(default_factory=dict)  # by cell
    ready_s: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # what went wrong, in order

    def failed_requests(self) -> int:
        return sum(run.failed for runs in self.runs.values() for run in runs)


@dataclass
class Comparison:
    outcomes: list[Outcome]
    cells: Sequence[Cell]
    rounds_done: int = 0
    notes: list[str] = field(default_factory=list)


def compare(
    servers: Sequence[Server],
    cells: Sequence[Cell],
    *,
    rounds: int,
    budget: float,
    logs: Path,
    progress: bool = True,
    resident: bool = False,
    save: Callable[[Comparison], None] = lambda _: None,
) -> Comparison:
    """A B C A B C …, one server at a time. A round that would probably outlast the budget
    (seconds) isn't begun, so that all servers have equally many.

    resident: servers are started once and stay; those that aren't measured are stopped (SIGSTOP)
    where they bear it.  Else each is started anew in each round.  save: called after each server's
    part of a round, so that what was measured outlives a run cut short.
    """
    comparison = Comparison([Outcome(server) for server in servers], cells)
    began = time.monotonic()
    longest = 0.0
    with _Running(resident) as running:
        for number in range(rounds):
            at = time.monotonic()
            if number and at - began + longest > budget:
                comparison.notes.append(
                    f"{number} of {rounds} rounds: another would not have fitted into {budget:g} s."
                )
                break
            for outcome in comparison.outcomes:
                label = f"round {number + 1}/{rounds}, {outcome.server.name}"
                log = logs / f"{outcome.server.name}.log"
                _one_server(outcome, cells, running.awake(outcome, log), label, progress)
                save(comparison)
            comparison.rounds_done = number + 1
            longest = max(longest, time.monotonic() - at)
    return comparison


class _Running:
    """The servers that stay from round to round: all of them, or none."""

    def __init__(self, resident: bool) -> None:
        self._resident = resident
        self._kept: dict[str, RunningServer] = {}

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._kept.values():
            server.stop()

    @contextmanager
    def awake(self, outcome: Outcome, log: Path) -> Iterator[RunningServer]:
        """The only server that runs, inside the block. One that fails is started anew later."""
        name = outcome.server.name
        server = self._kept.pop(name, None)
        if server is None:
            server = RunningServer(outcome.server, log)
            server.__enter__()
            outcome.ready_s.append(server.ready_s)
        else:
            server.resume()
        try:
            yield server
        except BaseException:
            server.stop()
            raise
        if self._resident:
            server.pause()
            self._kept[name] = server
        else:
            server.stop()


def _one_server(
    outcome: Outcome,
    cells: Sequence[Cell],
    awake: AbstractContextManager[RunningServer],
    label: str,
    progress: bool,
) -> None:
    say(f"{label}: starting")
    try:
        with awake as running:
            for cell in cells:
                if not outcome.server.takes(cell):
                    continue
                say(f"{label}: {cell.name}")
                options = cell.options(running.url, outcome.server.end_control)
                report = run(options, progress=progress)
                outcome.runs.setdefault(cell.name, []).append(report.summary)
            outcome.memory_bytes.append(running.memory())
    except (ServerFailed, TargetError) as error:
        outcome.failures.append(str(error))
        say(f"{label}: {error}")


@dataclass(frozen=True)
class Figure:
    """A median over the rounds; lower_bound where a run that enters it ended too early to know."""

    value: float
    lower_bound: bool = False

    def __str__(self) -> str:
        digits = 0 if self.value >= 100 else 1
        return f"{'> ' if self.lower_bound else ''}{self.value:,.{digits}f}"


def medians(runs: Sequence[Summary]) -> dict[str, Figure | None]:
    """Of the figures that the table shows; None where no run has it."""
    return {
        "output_tokens_per_s": _median([Figure(run.output_tokens_per_s) for run in runs]),
        "requests_per_s": _median([Figure(run.requests_per_s) for run in runs]),
        "ttft_p50_ms": _median([_figure(run.ttft_ms, "p50") for run in runs]),
        "ttft_p99_ms": _median([_figure(run.ttft_ms, "p99") for run in runs]),
        "inter_token_p50_ms": _median([_figure(run.inter_token_ms, "p50") for run in runs]),
        "inter_token_p99_ms": _median([_figure(run.inter_token_ms, "p99") for run in runs]),
        "end_to_end_p50_ms": _median([_figure(run.end_to_end_ms, "p50") for run in runs]),
    }


def _figure(distribution: Distribution | None, name: str) -> Figure | None:
    if distribution is None:
        return None
    return Figure(getattr(distribution, name), name in distribution.lower_bounds)


def _median(figures: Sequence[Figure | None]) -> Figure | None:
    known = [figure for figure in figures if figure is not None]
    if not known:
        return None
    value = statistics.median(figure.value for figure in known)
    return Figure(value, any(figure.lower_bound for figure in known))


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Everything measured, each run included."""
    return {
        "rounds": comparison.rounds_done,
        "notes": comparison.notes,
        "cells": [cell.to_dict() for cell in comparison.cells],
        "servers": {o.server.name: _outcome_dict(o) for o in comparison.outcomes},
    }


def _outcome_dict(outcome: Outcome) -> dict[str, Any]:
    return {
        "version": outcome.server.version,
        "note": outcome.server.note,
        "environment": outcome.server.environment,
        "end_control": str(outcome.server.end_control),
        "ready_s": [round(seconds, 2) for seconds in outcome.ready_s],
        "memory_bytes": outcome.memory_bytes,
        "failures": outcome.failures,
        "cells": {
            name: {
                "medians": {
                    key: None
                    if figure is None
                    else {"value": figure.value, "lower_bound": figure.lower_bound}
                    for key, figure in medians(runs).items()
                },
                "runs": [run.to_dict() for run in runs],
            }
            for name, runs in outcome.runs.items()
        },
    }
