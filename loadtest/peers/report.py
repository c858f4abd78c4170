"""What the reports of both comparisons share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.peers.rounds import Measurement, Outcome
from loadtest.report.chart import chart
from penstock.bench.load.report import markdown_table

OURS = "penstock"


def number(value: float) -> str:
    """With a place after the point where it is small."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def peers_table(measurement: Measurement, kind: str, ready: str, note: str) -> str:
    """A row for each peer. The arguments: headings of the first, third and last column."""
    rows = [
        [
            outcome.peer.name,
            outcome.peer.version,
            "–" if outcome.ready_s is None else f"{outcome.ready_s:.1f}",
            "–" if outcome.memory_bytes is None else f"{outcome.memory_bytes / 2**20:,.0f}",
            outcome.peer.note or "–",
        ]
        for outcome in measurement.outcomes
    ]
    return markdown_table([kind, "version", ready, "memory, MiB", note], rows)


def failures(measurement: Measurement) -> list[str]:
    """A line for each."""
    return [
        f"{outcome.peer.name}: {failure.splitlines()[0]}"
        for outcome in measurement.outcomes
        for failure in outcome.failures
    ]


def draw_bars(
    measurement: Measurement,
    rate: Callable[[Outcome, Any], float | None],
    path: Path,
    *,
    label: str,
    limit: Callable[[Any], float | None] = lambda _: None,
) -> None:
    """A panel for each piece of work. rate: a bar's height; None: there is no bar.
    limit: the height of a dotted line across the panel."""
    count = len(measurement.work)
    with chart(path, columns=count, size=(3.6 * count, 3.6), squeeze=False) as panels:
        for panel, work in zip(panels[0], measurement.work, strict=True):
            rates = {o.peer.name: r for o in measurement.outcomes if (r := rate(o, work))}
            colours = ["C0" if name == OURS else "0.7" for name in rates]
            bars = panel.bar(list(rates), list(rates.values()), color=colours)
            panel.bar_label(bars, fmt="{:,.0f}", fontsize=8)
            if (most := limit(work)) is not None:
                panel.axhline(most, color="C3", linestyle=":", linewidth=1)
            panel.set_title(work.name, fontsize=8)
            panel.tick_params(axis="x", labelrotation=35, labelsize=8)
            panel.margins(y=0.12)
        panels[0][0].set_ylabel(label, fontsize=8)
