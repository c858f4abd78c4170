"""What a run found, as Markdown."""

from __future__ import annotations

import statistics
from typing import Any

from loadtest.report.facts import machine_line
from loadtest.report.findings import listed, sections, verdict
from penstock.bench.load.report import markdown_table

FIRST_WITHIN = 3.0
ACCEPTED_WITHIN = 30.0
"""Seconds after a kill."""


def faults(figures: dict[str, Any]) -> list[str]:
    """What is not as it should be, in words."""
    found = []
    for kill in figures["kills"]:
        name = f"{kill['requests']:,} of {kill['load']}"
        if kill["open_at_the_kill"] < kill["wanted_open"]:
            found.append(f"{name}: only {kill['open_at_the_kill']:,} were open at the kill")
        if kill["wrong"]:
            found.append(f"{name}: {kill['wrong']:,} failed or were different")
        for what, limit in (("first", FIRST_WITHIN), ("accepted", ACCEPTED_WITHIN)):
            seconds = kill[f"{what}_s"]
            if seconds is None or seconds > limit:
                found.append(f"{name}: {what} after {_seconds(seconds)} s, not {limit:g}")
    storm = figures["storm"]
    if storm is not None:
        if storm["wrong"]:
            found.append(f"storm: {storm['wrong']:,} failed or were different")
        stuck = sum(not pause["went_on"] for pause in storm["pauses"])
        if stuck:
            found.append(f"storm: not all went on after {stuck} pauses")
    return found


def passed(figures: dict[str, Any]) -> bool:
    return not faults(figures)


def markdown(facts: dict[str, Any], figures: dict[str, Any]) -> str:
    """The whole file."""
    head = ["one kill -9 of the engine core", "requests", "tokens of a prompt", "open then"]
    head += ["first token, s", "all accepted, s", "all ended, s", "equal", "wrong"]
    rows = [
        [
            kill["load"],
            f"{kill['requests']:,}",
            f"{kill['prompt_tokens']:,}",
            f"{kill['open_at_the_kill']:,}",
            _seconds(kill["first_s"]),
            _seconds(kill["accepted_s"]),
            _seconds(kill["ended_s"]),
            f"{kill['equal']:,}",
            f"{kill['wrong']:,}",
        ]
        for kill in figures["kills"]
    ]
    parts = [machine_line(facts), verdict(faults(figures)), markdown_table(head, rows)]
    if figures["storm"] is not None:
        parts += _storm(figures["storm"])
    wrong = [*figures["kills"], *([figures["storm"]] if figures["storm"] else [])]
    return sections([*parts, listed(line for each in wrong for line in each["failed"])])


def _storm(storm: dict[str, Any]) -> list[str]:
    rows = []
    for victim in dict.fromkeys(pause["victim"] for pause in storm["pauses"]):
        own = [pause for pause in storm["pauses"] if pause["victim"] == victim]
        after = [pause["after_s"] for pause in own]
        rows.append(
            [
                victim,
                str(len(own)),
                f"{min(pause['seconds'] for pause in own):.1f} to "
                f"{max(pause['seconds'] for pause in own):.1f}",
                _seconds(statistics.median(after)),
                _seconds(max(after)),
            ]
        )
    words = (
        f"Pauses (SIGSTOP) under {storm['requests']} requests: {storm['equal']} equal to what they "
        f"say undisturbed, {storm['wrong']} failed or different."
    )
    head = ["paused", "times", "for, s", "all went on after, s: median", "longest"]
    return [words, markdown_table(head, rows)]


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"
