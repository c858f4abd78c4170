"""tune.png: every candidate's speed, beside the present choice's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.gpu.tune import advice


def draw(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """files: the chart, if it was drawn; reason: why there is none, or empty."""
    try:
        import matplotlib
    except ImportError:
        return {"files": [], "reason": "matplotlib is not installed; the tables have everything"}
    matplotlib.use("Agg")
    from matplotlib import pyplot

    speeds = {name: _speeds(document["rows"], name) for name in _settings(document)}
    speeds = {name: found for name, found in speeds.items() if found}
    if not speeds:
        return {"files": [], "reason": "nothing was timed"}
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.45 * len(speeds)))
    for place, found in enumerate(speeds.values()):
        axes.plot(found, [place] * len(found), "o", alpha=0.5, markersize=5, color="C0")
        axes.plot(max(found), place, "o", markersize=7, color="C1")
    axes.axvline(1.0, color="0.4", label="present choice")
    axes.set_yticks(range(len(speeds)), list(speeds), fontsize=8)
    axes.set(xlabel="speed over all shapes, times the present choice's")
    axes.invert_yaxis()
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return {"files": [path.name], "reason": ""}


def _settings(document: dict[str, Any]) -> list[str]:
    return advice.settings_of(document["rows"])


def _speeds(rows: list[advice.Row], setting: str) -> list[float]:
    found = advice.by_candidate(rows, setting)
    shapes = len(advice.shapes_of(found))
    means = [advice.mean_speed(some, shapes) for some in found.values()]
    return [mean for mean in means if mean is not None]
