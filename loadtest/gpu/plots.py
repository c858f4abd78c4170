"""Charts of the results, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadtest.gpu import figures
from loadtest.report.chart import chart

Document = dict[str, Any]
Draw = Callable[[Document, Path], bool]
"""Draws one chart. Whether there was anything to draw."""


def draw(document: Document, folder: Path, charts: Mapping[str, Draw]) -> Document:
    """charts: by file name.

    Returns `files`, the charts that were drawn, and `reason`, why there are none, or empty.
    """
    if find_spec("matplotlib") is None:
        return {"files": [], "reason": "matplotlib is not installed; the tables have everything"}
    drawn = [name for name, make in charts.items() if make(document, folder / name)]
    return {"files": drawn, "reason": ""}


def _kernels(document: Document, path: Path) -> bool:
    """Each kernel's share of the machine's limit, and torch's."""
    limit = figures.limits(document)
    rows = [row for row in figures.rows(document, "kernels") if figures.share(row, limit)]
    if not rows:
        return False
    places = range(len(rows))
    bars = (("Penstock", "seconds", -0.2, "C0"), ("torch", "torch_seconds", 0.2, "0.7"))
    with chart(path, size=(9, 1 + 0.32 * len(rows))) as axes:
        for label, seconds, off, colour in bars:
            shares = [100 * (figures.share(row, limit, seconds) or 0) for row in rows]
            axes.barh([place + off for place in places], shares, 0.4, label=label, color=colour)
        axes.set_yticks(list(places), [f"{row['op']}, {row['shape']}" for row in rows], fontsize=7)
        axes.set(xlabel="% of the machine's limit", xlim=(0, None))
        axes.invert_yaxis()
        axes.legend()
    return True


def _decode(document: Document, path: Path) -> bool:
    """Tokens per second against the batch, with the limit, a panel for each model."""
    rows = sorted(figures.rows(document, "steps", what="decode"), key=lambda row: row["batch"])
    models = sorted({row["model"] for row in rows})
    if not models:
        return False
    size = (5 * len(models), 3.8)
    with chart(path, columns=len(models), size=size, squeeze=False) as panels:
        for axes, model in zip(panels[0], models, strict=True):
            of_model = [row for row in rows if row["model"] == model]
            _decode_panel(axes, of_model, figures.limits(document))
            axes.set(title=model, xlabel="batch", ylabel="tokens/s", xscale="log", yscale="log")
            axes.legend(fontsize=8)
    return True


def _decode_panel(axes: Any, rows: list[figures.Row], limit: figures.Limits | None) -> None:
    for mode in dict.fromkeys(row["mode"] for row in rows):
        rates = {
            row["batch"]: row["tokens"] / row["seconds"] for row in rows if row["mode"] == mode
        }
        axes.plot(list(rates), list(rates.values()), marker="o", label=mode)
    if limit is not None:
        best = {row["batch"]: row["tokens"] / limit.seconds(row["bytes"], 0) for row in rows}
        axes.plot(list(best), list(best.values()), "k:", label="memory limit")


def _runs(document: Document, path: Path) -> bool:
    """Tokens per second of all systems."""
    rows = list(figures.rows(document, "end-to-end", "transformers", what="run"))
    if not rows:
        return False
    rows.sort(key=lambda row: row["model"])
    names = [f"{row['model']}, {row['system']}, {row['requests']}" for row in rows]
    with chart(path, size=(9, 1 + 0.4 * len(rows))) as axes:
        axes.barh(names, [figures.output_rate(row) for row in rows])
        axes.set(xlabel="output tokens/s")
        axes.invert_yaxis()
    return True


CHARTS: dict[str, Draw] = {
    "kernels.png": _kernels,
    "decode.png": _decode,
    "end_to_end.png": _runs,
}
