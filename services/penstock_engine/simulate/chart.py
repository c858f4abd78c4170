"""A run as an image: latencies as shares of requests, and load over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.errors import InvalidRequest
from penstock_engine.simulate.metrics import Metrics


def draw(metrics: Metrics, path: Path) -> None:
    """Writes a PNG. Raises InvalidRequest where matplotlib isn't installed."""
    try:
        import matplotlib
    except ImportError:
        raise InvalidRequest(
            "drawing needs matplotlib, which isn't installed: pip install matplotlib"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(10, 7))
    for panel, title, histogram in (
        (panels[0][0], "to the first token", metrics.ttft),
        (panels[0][1], "between tokens", metrics.itl),
        (panels[1][0], "end to end", metrics.e2e),
    ):
        points = histogram.curve()
        panel.step([1000 * value for value, _ in points], [100 * share for _, share in points])
        panel.set_xscale("log")
        _label(panel, f"ms {title}", "% of them")
    _load(panels[1][1], metrics)
    figure.tight_layout()
    figure.savefig(path, dpi=120, format="png")
    pyplot.close(figure)


def _load(panel: Any, metrics: Metrics) -> None:
    series = metrics.series
    hours = series.width * len(series.sums) > 7200
    unit = 3600 if hours else 1
    times = [(at + 0.5) * series.width / unit for at in range(len(series.sums))]
    panel.plot(times, [total / series.width for total in series.sums], label="output tokens/s")
    _label(panel, "simulated hours" if hours else "simulated seconds", "output tokens/s")
    other = panel.twinx()
    other.plot(times, series.peaks, color="tab:orange", linewidth=0.8)
    other.set_ylabel("open requests of a replica, most", fontsize=9, color="tab:orange")


def _label(panel: Any, x: str, y: str) -> None:
    panel.set_xlabel(x, fontsize=9)
    panel.set_ylabel(y, fontsize=9)
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
