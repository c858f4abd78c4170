"""Time per step and memory against batch, context and threads, on the CPU kernels:
`python loadtest/scaling.py --help`.

The worker's own forward pass gets batches made by hand; there is no engine and no sampler. Every
page of the KV cache that a step reads has been written by a step before, so that it is real memory.
Curves go to a JSON file, a Markdown table and PNG charts. About two minutes on two cores.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the worker has it

from loadtest.curves import SMOKE, Curves, Extent, measure, recipe_for
from loadtest.peers.servers import SetupError, default_model
from loadtest.report.chart import chart
from loadtest.report.facts import machine_line
from loadtest.report.files import Facts, Report, parser, say
from penstock.bench.load.report import markdown_table
from penstock.errors import StartupError
from penstock.machine import usable_cores
from penstock.prepare import prepare

PROGRAM = "loadtest/scaling.py"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 2 without a model or kernels."""
    command = parser(PROGRAM, __doc__, section=True)
    command.add_argument("--smoke", action="store_true", help="a few small points")
    flags = command.parse_args(arguments)
    extent = SMOKE if flags.smoke else Extent()
    report, curves = Report("scaling", PROGRAM, flags, arguments), Curves({}, {}, [], [])
    try:
        model = default_model()
        folder = prepare(str(model))
        for threads in sorted({1, max(int(usable_cores()), 1)}, reverse=True):
            measure(curves, extent, recipe_for(folder, extent, threads), threads)
    except (SetupError, StartupError) as error:
        say(f"scaling: {error}")
        return 2
    report.finish(
        {"extent": asdict(extent), "curves": asdict(curves)},
        lambda facts: to_markdown(curves, facts, extent),
        draw=lambda path: draw(curves, extent, path),
        section="scaling",
        caption="time per step and memory",
        model=model.name,
    )
    return 0


def to_markdown(curves: Curves, facts: Facts, extent: Extent) -> str:
    """Tables of the points."""
    parts = [
        f"{machine_line(facts)}; {facts['model']}. Medians of at least 5 steps.\n",
        "Milliseconds of a decode step against the sequences in it:\n",
        _table("sequences", curves.batch),
        "Against the tokens of each sequence's context:\n",
        _table("context", curves.context),
        f"Memory that the worker grew by, MiB ({curves.kv_bytes:,.0f} bytes of keys and values a "
        "token by the cache's shape):\n",
        _table(f"requests of {extent.base} tokens", {"MiB": curves.memory_requests}),
        _table("tokens of one request", {"MiB": curves.memory_context}),
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
    most, name, low, high = max(rises)
    return (
        f"Steepest between neighbours ({name}): from {low:,.0f} to {high:,.0f} the time grows by "
        f"{most:.2f} × as much as the work; beyond 1 would be a cliff."
    )


def _table(what: str, by_name: dict[str, list[list[float]]]) -> str:
    """A row for each x, a column for each curve. All have the same xs."""
    points = zip(*by_name.values(), strict=True)
    rows = [[f"{row[0][0]:,.0f}", *(f"{y:,.2f}" for _, y in row)] for row in points]
    return markdown_table([what, *by_name], rows)


def draw(curves: Curves, extent: Extent, path: Path) -> None:
    """Four panels."""
    token = curves.kv_bytes / 2**20
    requests = f"requests of {extent.base} tokens"
    with chart(path, columns=2, rows=2, size=(10, 7)) as (above, below):
        _panel(above[0], curves.batch, "sequences in the step", "ms a step")
        _panel(above[1], curves.context, "tokens of context", "ms a step")
        _memory_panel(below[0], curves.memory_requests, requests, extent.base * token)
        _memory_panel(below[1], curves.memory_context, "tokens of one request", token)


def _memory_panel(panel: Any, points: list[list[float]], x: str, each: float) -> None:
    """each: MiB of keys and values, by the cache's shape."""
    by_shape = [[n, n * each] for n, _ in points]
    _panel(panel, {"process grew by": points, "keys and values": by_shape}, x, "MiB")


def _panel(panel: Any, curves: dict[str, list[list[float]]], x: str, y: str) -> None:
    """Both axes logarithmic: a straight line of slope 1 is proportional."""
    for name, points in curves.items():
        panel.plot([p[0] for p in points], [p[1] for p in points], "o-", markersize=3, label=name)
    panel.set_xscale("log", base=2)
    panel.set(yscale="log", xlabel=x, ylabel=y)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)


if __name__ == "__main__":
    sys.exit(main())
