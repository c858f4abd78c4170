"""What a run found, as Markdown and as a chart."""

from __future__ import annotations

from typing import Any

from loadtest.report.facts import machine_line
from loadtest.report.findings import listed, sections
from penstock.bench.load.report import markdown_table

ALLOWED_DRIFT = 0.02


def passed(figures: dict[str, Any]) -> bool:
    """No stream lost, and no process grew by more than it may."""
    grown = [each["growth"] for each in figures["memory"].values()]
    return figures["lost"] == 0 and all(growth < ALLOWED_DRIFT for growth in grown)


def markdown(facts: dict[str, Any], figures: dict[str, Any]) -> str:
    """The whole file."""
    head = ["process", "RSS early, MiB", "RSS late, MiB", "growth"]
    rows = [
        [
            name,
            f"{each['early_mib']:.1f}",
            f"{each['late_mib']:.1f}",
            f"{100 * each['growth']:+.2f} %",
        ]
        for name, each in figures["memory"].items()
    ]
    words = (
        f"{figures['streams']:,} streams at a time for {figures['seconds']:g} s, after "
        f"{figures['warm_up']:g} s of warming up, through haproxy "
        f"and {figures['gateways']} gateways: {figures['begun']:,} begun, "
        f"{figures['whole']:,} whole, {figures['lost']} lost; never fewer than "
        f"{figures['fewest_open']:,} open; {figures['tokens_per_s']:,.0f} tokens a second; longest "
        f"gap in a stream {figures['longest_gap_s']:.2f} s at a token each "
        f"{figures['step_seconds']:g} s. Early and late: medians of the first minute after the "
        "warm-up and of the last one (of a short run: quarter)."
    )
    table = markdown_table(head, rows)
    return sections([machine_line(facts), words, table, listed(figures["losses"])])
