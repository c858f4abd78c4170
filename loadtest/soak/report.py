"""What a run found, as Markdown."""

from __future__ import annotations

from typing import Any

from loadtest.report.facts import machine_line
from loadtest.report.findings import listed, sections
from loadtest.report.memory import growth_table

ALLOWED_DRIFT = 0.02


def passed(figures: dict[str, Any]) -> bool:
    """No stream lost, and no process grew by more than it may."""
    grown = [each["growth"] for each in figures["memory"].values()]
    return figures["lost"] == 0 and all(growth < ALLOWED_DRIFT for growth in grown)


WORDS = """
{streams:,} streams at a time for {seconds:g} s, after {warm_up:g} s of warming up, through haproxy
and {gateways} gateways: {begun:,} begun, {whole:,} whole, {lost} lost; never fewer than
{fewest_open:,} open; {tokens_per_s:,.0f} tokens a second; longest gap in a stream
{longest_gap_s:.2f} s at a token each {step_seconds:g} s. Early and late: medians of the first
minute after the warm-up and of the last one (of a short run: quarter).
"""


def markdown(facts: dict[str, Any], figures: dict[str, Any]) -> str:
    """The whole file."""
    words = " ".join(WORDS.format_map(figures).split())
    memory = growth_table(figures["memory"], "early", "late")
    return sections([machine_line(facts), words, memory, listed(figures["losses"])])
