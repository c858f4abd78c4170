"""What a run found, as Markdown and as a chart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from loadtest.report.facts import machine_line
from loadtest.report.findings import listed, sections, verdict
from penstock.bench.load.report import markdown_table

LOST = ("session with the engine core ended", "session with the engine ended")
"""What a gateway and a worker say of a session that is over."""
ALLOWED_RATIO = 3.0
ALLOWED_GROWTH = 0.1
"""Of a process's memory, from the first quarter beside the adversary to the last."""


def sessions_lost(log: Path) -> list[str]:
    """The lines of the server's log that tell of one."""
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if any(words in line for words in LOST)]


def faults(figures: dict[str, Any]) -> list[str]:
    """What is not as it should be, in words."""
    beside = figures["beside"]
    found = []
    if not figures["ratio_p99"] <= ALLOWED_RATIO:
        found.append(f"p99 between pieces is {figures['ratio_p99']:.2f} times that alone")
    if not beside["whole"]:
        found.append("no stream of alice's came to its end")
    for name in ("refused", "broken"):
        if beside[name]:
            found.append(f"{beside[name]} of alice's streams {name}")
    if figures["sessions_lost"]:
        found.append(f"{figures['sessions_lost']} sessions lost")
    if figures["restarts"]:
        found.append(f"{figures['restarts']} processes restarted")
    for name, memory in figures["memory"].items():
        if memory["growth"] > ALLOWED_GROWTH:
            found.append(f"{name} grew by {100 * memory['growth']:.1f} %")
    return found


def passed(figures: dict[str, Any]) -> bool:
    return not faults(figures)


def markdown(facts: dict[str, Any], figures: dict[str, Any]) -> str:
    """The whole file."""
    words = (
        f"{figures['streams']} streams of alice's, {figures['quiet_seconds']:g} s alone and then "
        f"{figures['seconds']:g} s beside {figures['at_a_time']} requests at a time of mallory's "
        f"(seed {figures['seed']}): p99 between two pieces {figures['ratio_p99']:.2f} times that "
        f"alone, {ALLOWED_RATIO:g} allowed; {figures['sessions_lost']} sessions lost, "
        f"{figures['restarts']} processes restarted."
    )
    parts = [
        machine_line(facts),
        words,
        verdict(faults(figures)),
        _streams(figures),
        _memory(figures),
        _answers(figures["answers"]),
        listed(figures["beside"]["problems"] + figures["lost"]),
    ]
    return sections(parts)


def _streams(figures: dict[str, Any]) -> str:
    keys = ("gap_p50_s", "gap_p99_s", "longest_gap_s", "first_p50_s", "first_p99_s")
    head = ["alice, ms", "between pieces, p50", "p99", "longest", "to the first, p50", "p99"]
    head += ["whole", "refused", "broken"]
    rows = [
        [
            name,
            *(f"{1000 * figures[part][key]:,.0f}" for key in keys),
            *(f"{figures[part][key]:,}" for key in ("whole", "refused", "broken")),
        ]
        for name, part in (("alone", "quiet"), ("beside mallory", "beside"))
    ]
    return markdown_table(head, rows)


def _memory(figures: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{each['early_mib']:.0f}",
            f"{each['late_mib']:.0f}",
            f"{100 * each['growth']:+.1f} %",
        ]
        for name, each in figures["memory"].items()
    ]
    head = ["RSS, MiB", "first quarter", "last quarter", "growth"]
    return markdown_table(head, rows) if rows else ""


def _answers(answers: dict[str, dict[str, int]]) -> str:
    """Of every kind of request, how many had which end; the most common ends first."""
    totals: Counter[str] = Counter()
    for each in answers.values():
        totals.update(each)
    ends = [end for end, _ in totals.most_common()]
    rows = [
        [kind, *(f"{each.get(end, 0):,}" for end in ends)] for kind, each in sorted(answers.items())
    ]
    return markdown_table(
        ["mallory's", *ends], [*rows, ["all", *(f"{totals[end]:,}" for end in ends)]]
    )
