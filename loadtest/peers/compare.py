"""Penstock beside vLLM and llama.cpp, in one run: `python -m loadtest.peers.compare --help`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.peers.cells import CELLS, SMOKE_CELLS, Cell
from loadtest.peers.comparison import OURS, Comparison, number, peers_table
from loadtest.peers.rounds import Measurement, Outcome
from loadtest.peers.servers import NAMES, Server, make_server
from loadtest.report import Document, markdown_table
from penstock.bench.load.statistics import Summary

_COLUMNS = {
    "output tok/s": "output_tokens_per_s",
    "req/s": "requests_per_s",
    "TTFT p50, ms": "ttft_p50_ms",
    "TTFT p99, ms": "ttft_p99_ms",
    "inter-token p50, ms": "inter_token_p50_ms",
    "p99": "inter_token_p99_ms",
    "end to end p50, ms": "end_to_end_p50_ms",
}


@dataclass(frozen=True)
class Figure:
    """A median over the rounds; lower_bound where a run that enters it ended too early to know."""

    value: float
    lower_bound: bool = False

    def __str__(self) -> str:
        return f"{'> ' if self.lower_bound else ''}{number(self.value)}"


def medians(runs: Sequence[Summary]) -> dict[str, Figure | None]:
    """Of the figures that the table shows; None where no run has it."""
    return {key: _median([_figure(run, key) for run in runs]) for key in _COLUMNS.values()}


def _figure(run: Summary, key: str) -> Figure | None:
    if key.endswith("_per_s"):
        return Figure(getattr(run, key))
    latency, quantile, unit = key.rsplit("_", 2)
    distribution = getattr(run, f"{latency}_{unit}")
    if distribution is None:
        return None
    return Figure(getattr(distribution, quantile), quantile in distribution.lower_bounds)


def _median(figures: Sequence[Figure | None]) -> Figure | None:
    known = [figure for figure in figures if figure is not None]
    if not known:
        return None
    value = statistics.median(figure.value for figure in known)
    return Figure(value, any(figure.lower_bound for figure in known))


class Servers(Comparison):
    """Penstock beside vLLM and llama.cpp, in one run.

    Each server is started and stays. Then they take turns: a round is every workload on every
    server, one computing at a time; the others are stopped with SIGSTOP. Medians go to a JSON file,
    a Markdown table and a bar chart.
    """

    section, caption, label = "comparison", "output tokens per second", "output tokens/s"
    peers, pieces, names = "servers", "cells", NAMES
    work, smoke_work, seconds = CELLS, SMOKE_CELLS, 660.0

    def make(self, name: str, model: Path) -> Server:
        return make_server(name, model)

    def figures(self, work: Cell, runs: list[Summary]) -> Document:
        found = {key: figure and asdict(figure) for key, figure in medians(runs).items()}
        return {"medians": found, "runs": [run.to_dict() for run in runs]}

    def rate(self, outcome: Outcome, work: Cell) -> float | None:
        figure = medians(outcome.runs.get(work.name, []))["output_tokens_per_s"]
        return None if figure is None else figure.value

    def tables(self, measurement: Measurement) -> list[str]:
        parts = [
            f"medians of {measurement.rounds_done} rounds, the servers in turn.",
            peers_table(measurement, "server", "start to ready, s", "model"),
        ]
        for cell in measurement.work:
            parts.append(
                f"**{cell.name}** ({cell.requests} requests, {cell.seconds:g} s at most)\n"
            )
            parts.append(_cell_table(measurement, cell))
        if targets := _targets_table(measurement):
            parts.append(f"Targets, as ratios of these medians:\n\n{targets}")
        return parts

    def notes(self, measurement: Measurement) -> list[str]:
        notes, outcomes = list(measurement.notes), measurement.outcomes
        if any(run.cut_off for o in outcomes for runs in o.runs.values() for run in runs):
            notes.append(
                "Cut off: the cell's time was over before these requests had ended. Their tokens "
                "count in tok/s; `>` marks a latency that would have been longer still."
            )
        for outcome in outcomes:
            for cell, runs in outcome.runs.items():
                errors = sorted({kind for run in runs if run.failed for kind in run.errors})
                if errors:
                    notes.append(f"{outcome.peer.name}, {cell}: {', '.join(errors)}.")
        return notes


def _cell_table(measurement: Measurement, cell: Cell) -> str:
    rows = []
    for outcome in measurement.outcomes:
        if not outcome.peer.takes(cell):
            continue
        runs = outcome.runs.get(cell.name, [])
        figures = [str(figure or "–") for figure in medians(runs).values()]
        counts = [
            str(sum(getattr(run, count) for run in runs))
            for count in ("completed", "cut_off", "failed")
        ]
        rows.append([outcome.peer.name, *figures, *counts])
    return markdown_table(["server", *_COLUMNS, "completed", "cut off", "failed"], rows)


def _targets_table(measurement: Measurement) -> str:
    """Empty where no cell has a target or its servers did not run."""
    rows = []
    labels = {key: label for label, key in _COLUMNS.items()}
    for cell in measurement.work:
        by_name = {o.peer.name: medians(o.runs.get(cell.name, [])) for o in measurement.outcomes}
        for target in cell.targets:
            ours = by_name.get(OURS, {}).get(target.figure)
            theirs = by_name.get(target.peer, {}).get(target.figure)
            if ours is None or theirs is None or not theirs.value:
                continue
            ratio = ours.value / theirs.value
            met = "yes" if target.met(ratio) else "**no**"
            name = f"{cell.name}: {labels[target.figure]}"
            rows.append([name, f"{ratio:.2f} ×", str(target), met])
    header = ["figure", "ours to the peer's", "target", "met"]
    return markdown_table(header, rows) if rows else ""


SERVERS = Servers()

if __name__ == "__main__":
    sys.exit(SERVERS.main())
