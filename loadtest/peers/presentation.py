"""A comparison as Markdown, as a chart, and in the README."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from loadtest.generator.report import markdown_table
from loadtest.generator.statistics import Summary
from loadtest.peers.measure import Comparison, Outcome, medians

BEGIN = "<!-- comparison: begin (written by compare.py --write-readme) -->"
END = "<!-- comparison: end -->"
_COLUMNS = {
    "output tok/s": "output_tokens_per_s",
    "TTFT p50, ms": "ttft_p50_ms",
    "TTFT p99, ms": "ttft_p99_ms",
    "inter-token p50, ms": "inter_token_p50_ms",
    "p99": "inter_token_p99_ms",
    "end to end p50, ms": "end_to_end_p50_ms",
}


def to_markdown(comparison: Comparison, facts: dict[str, Any]) -> str:
    """facts: what the JSON says about command, time, machine and model."""
    machine = facts["machine"]
    parts = [
        f"`{facts['command']}` on {facts['started'][:10]}, {machine['cpu']}, "
        f"{machine['cores']:g} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Python {machine['python']}; {facts['model']}; medians of "
        f"{comparison.rounds_done} rounds, the servers in turn.\n",
        _servers_table(comparison.outcomes),
    ]
    for cell in comparison.cells:
        parts.append(f"**{cell.name}** ({cell.requests} requests, {cell.seconds:g} s at most)\n")
        parts.append(_cell_table(comparison.outcomes, cell.name))
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


def _cell_table(outcomes: list[Outcome], cell: str) -> str:
    rows = []
    for outcome in outcomes:
        runs = outcome.runs.get(cell, [])
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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    count = len(comparison.cells)
    figure, panels = pyplot.subplots(1, count, figsize=(3.4 * count, 3.2), squeeze=False)
    for panel, cell in zip(panels[0], comparison.cells, strict=True):
        names = [outcome.server.name for outcome in comparison.outcomes]
        rates = [_rate(outcome, cell.name) for outcome in comparison.outcomes]
        bars = panel.bar(names, rates, color=[f"C{index}" for index in range(len(names))])
        panel.bar_label(bars, fmt="{:,.0f}")
        panel.set_title(cell.name, fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(y=0.12)
    panels[0][0].set_ylabel("output tokens/s")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _rate(outcome: Outcome, cell: str) -> float:
    """0 where the server has no run of the cell."""
    figure = medians(outcome.runs.get(cell, []))["output_tokens_per_s"]
    return 0.0 if figure is None else figure.value


def write_readme(readme: Path, section: str) -> None:
    """Replaces what stands between the markers. Raises ValueError where they are missing."""
    text = readme.read_text()
    before, found_begin, rest = text.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found_begin or not found_end:
        raise ValueError(f"{readme} has no lines {BEGIN!r} and {END!r}")
    readme.write_text(f"{before}{BEGIN}\n\n{section.strip()}\n\n{END}{after}")
