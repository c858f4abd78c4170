"""A comparison as Markdown, as a chart, and in the README."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from loadtest.peers.cells import Cell
from loadtest.peers.measure import Comparison, Outcome, medians
from loadtest.report.chart import chart
from loadtest.report.facts import machine_line
from penstock.bench.load.report import markdown_table
from penstock.bench.load.statistics import Summary

OURS = "penstock"
_COLUMNS = {
    "output tok/s": "output_tokens_per_s",
    "req/s": "requests_per_s",
    "TTFT p50, ms": "ttft_p50_ms",
    "TTFT p99, ms": "ttft_p99_ms",
    "inter-token p50, ms": "inter_token_p50_ms",
    "p99": "inter_token_p99_ms",
    "end to end p50, ms": "end_to_end_p50_ms",
}


def to_markdown(comparison: Comparison, facts: dict[str, Any]) -> str:
    """facts: what the JSON says about command, time, machine and model."""
    parts = [
        f"{machine_line(facts)}; {facts['model']}; medians of "
        f"{comparison.rounds_done} rounds, the servers in turn.\n",
        _servers_table(comparison.outcomes),
    ]
    for cell in comparison.cells:
        parts.append(f"**{cell.name}** ({cell.requests} requests, {cell.seconds:g} s at most)\n")
        parts.append(_cell_table(comparison.outcomes, cell))
    if targets := _targets_table(comparison):
        parts.append(f"Targets, as ratios of these medians:\n\n{targets}")
    parts.extend(f"- {note}" for note in _notes(comparison))
    return "\n".join(parts).rstrip() + "\n"


def _servers_table(outcomes: list[Outcome]) -> str:
    rows = [
        [
            outcome.server.name,
            outcome.server.version,
            f"{statistics.median(outcome.ready_s):.1f}" if outcome.ready_s else "–",
            f"{statistics.median(outcome.memory_bytes) / 2**20:,.0f}"
            if outcome.memory_bytes
            else "–",
            outcome.server.note or "–",
        ]
        for outcome in outcomes
    ]
    return markdown_table(["server", "version", "start to ready, s", "memory, MiB", "model"], rows)


def _targets_table(comparison: Comparison) -> str:
    """Empty where no cell has a target or its servers did not run."""
    rows = []
    for cell in comparison.cells:
        for target in cell.targets:
            ratio = _ratio(comparison, cell, target.peer, target.figure)
            if ratio is None:
                continue
            met = "yes" if target.met(ratio) else "**no**"
            name = next(label for label, key in _COLUMNS.items() if key == target.figure)
            rows.append([f"{cell.name}: {name}", f"{ratio:.2f} ×", str(target), met])
    header = ["figure", "ours to the peer's", "target", "met"]
    return markdown_table(header, rows) if rows else ""


def _ratio(comparison: Comparison, cell: Cell, peer: str, figure: str) -> float | None:
    by_name = {o.server.name: medians(o.runs.get(cell.name, [])) for o in comparison.outcomes}
    ours = by_name.get(OURS, {}).get(figure)
    theirs = by_name.get(peer, {}).get(figure)
    if ours is None or theirs is None or not theirs.value:
        return None
    return ours.value / theirs.value


def _cell_table(outcomes: list[Outcome], cell: Cell) -> str:
    rows = []
    for outcome in outcomes:
        if not outcome.server.takes(cell):
            continue
        runs = outcome.runs.get(cell.name, [])
        figures = medians(runs)
        shown = ["–" if figures[key] is None else str(figures[key]) for key in _COLUMNS.values()]
        rows.append([outcome.server.name, *shown, *_counts(runs)])
    return markdown_table(["server", *_COLUMNS, "completed", "cut off", "failed"], rows)


def _counts(runs: list[Summary]) -> list[str]:
    """Over all rounds."""
    columns = ("completed", "cut_off", "failed")
    return [str(sum(getattr(run, name) for run in runs)) for name in columns]


def _notes(comparison: Comparison) -> list[str]:
    notes = list(comparison.notes)
    runs = [run for o in comparison.outcomes for of_cell in o.runs.values() for run in of_cell]
    if any(run.cut_off for run in runs):
        notes.append(
            "Cut off: the cell's time was over before these requests had ended. Their tokens count "
            "in tok/s; `>` marks a latency that would have been longer still."
        )
    for outcome in comparison.outcomes:
        for cell, of_cell in outcome.runs.items():
            errors = sorted({kind for run in of_cell if run.failed for kind in run.errors})
            if errors:
                notes.append(f"{outcome.server.name}, {cell}: {', '.join(errors)}.")
        notes += [
            f"{outcome.server.name} failed in a round: {failure.splitlines()[0]}"
            for failure in outcome.failures
        ]
    return notes


def draw_chart(comparison: Comparison, path: Path) -> None:
    """Bars of output tokens per second, a panel for each cell."""
    count = len(comparison.cells)
    with chart(path, columns=count, size=(3.4 * count, 3.2), squeeze=False) as panels:
        for panel, cell in zip(panels[0], comparison.cells, strict=True):
            shown = [outcome for outcome in comparison.outcomes if outcome.server.takes(cell)]
            names = [outcome.server.name for outcome in shown]
            rates = [_rate(outcome, cell.name) for outcome in shown]
            bars = panel.bar(names, rates, color=[f"C{index}" for index in range(len(names))])
            panel.bar_label(bars, fmt="{:,.0f}")
            panel.set_title(cell.name, fontsize=9)
            panel.margins(y=0.12)
        panels[0][0].set_ylabel("output tokens/s")


def _rate(outcome: Outcome, cell: str) -> float:
    """0 where the server has no run of the cell."""
    figure = medians(outcome.runs.get(cell, []))["output_tokens_per_s"]
    return 0.0 if figure is None else figure.value
