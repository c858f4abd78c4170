"""The measurement's table and chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.report.chart import chart
from loadtest.report.facts import machine_line
from loadtest.report.table import table
from loadtest.worker_host.stand_ins import KERNEL_SECONDS, OPERATION_SECONDS, REPLAY_SECONDS

NAMES = {"sequences": "{case}", "version": "{version}"}
STEPS = {
    **NAMES,
    "p50": "{p50:,.0f}",
    "p99": "{p99:,.0f}",
    "launches": "{launches:g}",
    "of Triton's": "{of_triton:g}",
    "steps": "{steps}",
}


def report(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    used = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    parts = {part: f"{{parts[{part}][p50]:.0f}}" for part in rows[0]["parts"]}
    counted = [{**row, "of_triton": sum(row["kernels"].values())} for row in rows]
    return (
        f"{machine_line(facts)}; {used}\n\nMicroseconds of the host's processor for a decode step "
        "at contexts of 1,000 tokens, and device launches beside the graph's replay. Assumed: "
        f"{1e6 * KERNEL_SECONDS:.0f} for a Triton launch, {1e6 * REPLAY_SECONDS:.0f} for a replay, "
        f"{1e6 * OPERATION_SECONDS:.0f} for an operation of torch's that a CPU doesn't make: the "
        f"head's two and the copy of the sampler's numbers.\n\n{table(STEPS, counted)}\n"
        f"By part, p50 (p99 in worker_host.json):\n\n{table({**NAMES, **parts}, rows)}\n"
        "![microseconds of a step by part](worker_host.png)\n"
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    names = [f"{row['case']}: {row['version']}" for row in rows]
    left = [0.0] * len(rows)
    with chart(path, size=(10, 0.3 * len(rows) + 1.5)) as axes:
        for number, part in enumerate(rows[0]["parts"]):
            widths = [row["parts"][part]["p50"] for row in rows]
            shade = {"color": f"C{number % 10}", "alpha": 1 - number // 10 / 2}
            axes.barh(names, widths, left=left, label=part, **shade)
            left = [before + width for before, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set(xlabel="us of a step, p50 of each part")
        axes.legend(fontsize=7, ncols=2)
