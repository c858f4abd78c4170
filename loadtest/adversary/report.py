"""What a run found, as Markdown and as a chart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from loadtest.report.facts import machine_line
from loadtest.report.findings import listed, sections, verdict
from loadtest.report.memory import growth_table
from loadtest.report.table import table
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
    ratio, beside = figures["ratio_p99"], figures["beside"]
    lost, restarts = figures["sessions_lost"], figures["restarts"]
    checks = [
        (ratio <= ALLOWED_RATIO, f"p99 between pieces is {ratio:.2f} times that alone"),
        (beside["whole"] > 0, "no stream of alice's came to its end"),
        (not beside["refused"], f"{beside['refused']} of alice's streams refused"),
        (not beside["broken"], f"{beside['broken']} of alice's streams broken"),
        (not lost, f"{lost} sessions lost"),
        (not restarts, f"{restarts} processes restarted"),
    ]
    for name, memory in figures["memory"].items():
        growth = memory["growth"]
        checks.append((growth <= ALLOWED_GROWTH, f"{name} grew by {100 * growth:.1f} %"))
    return [fault for holds, fault in checks if not holds]


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
        growth_table(figures["memory"], "first quarter", "last quarter"),
        _answers(figures["answers"]),
        listed(figures["beside"]["problems"] + figures["lost"]),
    ]
    return sections(parts)


STREAMS = {
    "alice, ms": "{when}",
    "between pieces, p50": "{gap_p50:,.0f}",
    "p99": "{gap_p99:,.0f}",
    "longest": "{longest_gap:,.0f}",
    "to the first, p50": "{first_p50:,.0f}",
    "to the first, p99": "{first_p99:,.0f}",
    "whole": "{whole:,}",
    "refused": "{refused:,}",
    "broken": "{broken:,}",
}


def _streams(figures: dict[str, Any]) -> str:
    rows = []
    for when, name in (("alone", "quiet"), ("beside mallory", "beside")):
        found = figures[name]
        times = {key[:-2]: 1000 * s for key, s in found.items() if key.endswith("_s")}
        rows.append({"when": when, **found, **times})
    return table(STREAMS, rows)


def _answers(answers: dict[str, dict[str, int]]) -> str:
    """Of every kind of request, how many had which end; the most common ends first."""
    totals: Counter[str] = Counter()
    for each in answers.values():
        totals.update(each)
    ends = [end for end, _ in totals.most_common()]
    rows = [
        [kind, *(f"{each.get(end, 0):,}" for end in ends)]
        for kind, each in [*sorted(answers.items()), ("all", totals)]
    ]
    return markdown_table(["mallory's", *ends], rows)
