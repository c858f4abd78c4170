"""What a run found, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from loadtest.report.facts import machine_line
from loadtest.report.findings import listed, sections, verdict
from loadtest.report.table import table

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


KILLS = {
    "one kill -9 of the engine core": "{load}",
    "requests": "{requests:,}",
    "tokens of a prompt": "{prompt_tokens:,}",
    "open then": "{open_at_the_kill:,}",
    "first token, s": "{first}",
    "all accepted, s": "{accepted}",
    "all ended, s": "{ended}",
    "equal": "{equal:,}",
    "wrong": "{wrong:,}",
}
PAUSES = {
    "paused": "{victim}",
    "times": "{times}",
    "for, s": "{shortest:.1f} to {longest:.1f}",
    "all went on after, s: median": "{median:.2f}",
    "longest": "{most:.2f}",
}


def markdown(facts: dict[str, Any], figures: dict[str, Any]) -> str:
    """The whole file."""
    storm, runs = figures["storm"], list(figures["kills"])
    rows = [
        {**kill, **{name: _seconds(kill[f"{name}_s"]) for name in ("first", "accepted", "ended")}}
        for kill in figures["kills"]
    ]
    parts = [machine_line(facts), verdict(faults(figures)), table(KILLS, rows)]
    if storm is not None:
        runs.append(storm)
        parts += [
            f"Pauses (SIGSTOP) under {storm['requests']} requests: {storm['equal']} equal to what "
            f"they say undisturbed, {storm['wrong']} failed or different.",
            table(PAUSES, _by_victim(storm["pauses"])),
        ]
    return sections([*parts, listed(line for run in runs for line in run["failed"])])


def _by_victim(pauses: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for victim in dict.fromkeys(pause["victim"] for pause in pauses):
        own = [pause for pause in pauses if pause["victim"] == victim]
        lasted, after = ([pause[name] for pause in own] for name in ("seconds", "after_s"))
        yield {
            "victim": victim,
            "times": len(own),
            "shortest": min(lasted),
            "longest": max(lasted),
            "median": statistics.median(after),
            "most": max(after),
        }


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"
