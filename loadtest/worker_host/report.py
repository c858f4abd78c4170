"""The measurement's table and chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.report.chart import chart
from loadtest.report.facts import machine_line
from loadtest.worker_host.parts import PARTS
from loadtest.worker_host.stand_ins import KERNEL_SECONDS, OPERATION_SECONDS, REPLAY_SECONDS
from penstock.bench.load.report import markdown_table

TARGETS = {64: 500, 256: 1200}
"""Microseconds of a step of so many sequences."""


def report(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    used = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return (
        f"{machine_line(facts)}; {used}\n\nMicroseconds of the host's processor for a decode step "
        "at contexts of 1,000 tokens, and device launches beside the graph's replay. Assumed: "
        f"{1e6 * KERNEL_SECONDS:.0f} for a Triton launch, {1e6 * REPLAY_SECONDS:.0f} for a replay, "
        f"{1e6 * OPERATION_SECONDS:.0f} for an operation of torch's that a CPU doesn't make: the "
        "head's two and the copy of the sampler's numbers.\n\n"
        + markdown_table(
            ["sequences", "version", "p50", "p99", "launches", "of Triton's", "steps"],
            [
                [
                    row["case"],
                    row["version"],
                    f"{row['p50']:,.0f}",
                    f"{row['p99']:,.0f}",
                    f"{row['launches']:g}",
                    f"{sum(row['kernels'].values()):g}",
                    str(row["steps"]),
                ]
                for row in rows
            ],
        )
        + "\nBy part, p50 (p99 in worker_host.json):\n\n"
        + markdown_table(
            ["sequences", "version", *PARTS],
            [
                [
                    row["case"],
                    row["version"],
                    *(f"{row['parts'][part]['p50']:.0f}" for part in PARTS),
                ]
                for row in rows
            ],
        )
        + "\n![microseconds of a step by part](worker_host.png)\n"
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    names = [f"{row['case']}: {row['version']}" for row in rows]
    left = [0.0] * len(rows)
    with chart(path, size=(10, 0.3 * len(rows) + 1.5)) as axes:
        for number, part in enumerate(PARTS):
            widths = [row["parts"][part]["p50"] for row in rows]
            axes.barh(
                names,
                widths,
                left=left,
                label=part,
                color=f"C{number % 10}",
                alpha=1 - number // 10 / 2,
            )
            left = [before + width for before, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set(xlabel="us of a step, p50 of each part")
        axes.legend(fontsize=7, ncols=2)
