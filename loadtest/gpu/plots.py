"""Charts of the results, where matplotlib is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.gpu import figures

KERNELS, DECODE, RUNS = "kernels.png", "decode.png", "end_to_end.png"
NAMES = (KERNELS, DECODE, RUNS)


def draw(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """files: the charts that were drawn; reason: why there are none, or empty."""
    try:
        import matplotlib
    except ImportError:
        return {"files": [], "reason": "matplotlib is not installed; the tables have everything"}
    matplotlib.use("Agg")
    charts = {KERNELS: _kernels, DECODE: _decode, RUNS: _runs}
    return {
        "files": [name for name, make in charts.items() if make(document, folder / name)],
        "reason": "",
    }


def _kernels(document: dict[str, Any], path: Path) -> bool:
    """Each kernel's share of the machine's limit, and torch's. Whether there was anything."""
    from matplotlib import pyplot

    limit = figures.limits(document)
    rows = [row for row in figures.rows(document, "kernels") if figures.share(row, limit)]
    if not rows:
        return False
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.32 * len(rows)))
    places = range(len(rows))
    own = [100 * (figures.share(row, limit) or 0) for row in rows]
    theirs = [100 * (figures.share(row, limit, "torch_seconds") or 0) for row in rows]
    axes.barh([place - 0.2 for place in places], own, 0.4, label="Penstock")
    axes.barh([place + 0.2 for place in places], theirs, 0.4, label="torch", color="0.7")
    axes.set_yticks(list(places), [f"{row['op']}, {row['shape']}" for row in rows], fontsize=7)
    axes.set(xlabel="% of the machine's limit", xlim=(0, None))
    axes.invert_yaxis()
    axes.legend()
    _save(figure, path)
    return True


def _decode(document: dict[str, Any], path: Path) -> bool:
    """Tokens per second against the batch, with the limit, a panel for each model."""
    from matplotlib import pyplot

    rows = list(figures.rows(document, "steps", what="decode"))
    limit = figures.limits(document)
    models = list(dict.fromkeys(row["model"] for row in rows))
    if not models:
        return False
    figure, panels = pyplot.subplots(1, len(models), figsize=(5 * len(models), 3.8), squeeze=False)
    for axes, model in zip(panels[0], models, strict=True):
        of_model = sorted(
            (row for row in rows if row["model"] == model), key=lambda row: row["batch"]
        )
        for mode in dict.fromkeys(row["mode"] for row in of_model):
            some = [row for row in of_model if row["mode"] == mode]
            rates = [row["tokens"] / row["seconds"] for row in some]
            axes.plot([row["batch"] for row in some], rates, marker="o", label=mode)
        if limit is not None:
            best = {
                row["batch"]: row["tokens"] / limit.seconds(row["bytes"], 0) for row in of_model
            }
            axes.plot(list(best), list(best.values()), "k:", label="memory limit")
        axes.set(title=model, xlabel="batch", ylabel="tokens/s", xscale="log", yscale="log")
        axes.legend(fontsize=8)
    _save(figure, path)
    return True


def _runs(document: dict[str, Any], path: Path) -> bool:
    """Tokens per second of all systems."""
    from matplotlib import pyplot

    rows = [
        row
        for prefix in ("end-to-end", "transformers")
        for row in figures.rows(document, prefix, what="run")
    ]
    if not rows:
        return False
    rows.sort(key=lambda row: row["model"])
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.4 * len(rows)))
    names = [f"{row['model']}, {row['system']}, {row['requests']}" for row in rows]
    axes.barh(names, [figures.output_rate(row) for row in rows])
    axes.set(xlabel="output tokens/s")
    axes.invert_yaxis()
    _save(figure, path)
    return True


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
