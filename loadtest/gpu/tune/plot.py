"""tune.png: every candidate's speed, beside the present choice's."""

from __future__ import annotations

from pathlib import Path

from loadtest.gpu.plots import Document
from loadtest.gpu.tune import advice
from loadtest.report.chart import chart


def draw(document: Document, path: Path) -> bool:
    """Whether anything was timed."""
    rows = document["rows"]
    speeds = {name: _speeds(rows, name) for name in advice.settings_of(rows)}
    speeds = {name: found for name, found in speeds.items() if found}
    if not speeds:
        return False
    with chart(path, size=(9, 1.2 + 0.45 * len(speeds))) as axes:
        for place, found in enumerate(speeds.values()):
            axes.plot(found, [place] * len(found), "o", alpha=0.5, markersize=5, color="C0")
            axes.plot(max(found), place, "o", markersize=7, color="C1")
        axes.axvline(1.0, color="0.4", label="present choice")
        axes.set_yticks(range(len(speeds)), list(speeds), fontsize=8)
        axes.set(xlabel="speed over all shapes, times the present choice's")
        axes.invert_yaxis()
        axes.legend()
    return True


def _speeds(rows: list[advice.Row], setting: str) -> list[float]:
    found = advice.by_candidate(rows, setting)
    shapes = len(advice.shapes_of(found))
    means = [advice.mean_speed(some, shapes) for some in found.values()]
    return [mean for mean in means if mean is not None]
