"""What a run of chaos showed."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec

from loadtest.chaos.disturbing import Blow
from penstock.bench.load.report import markdown_table
from testing.streams.fleet import Score


def recoveries(blows: list[Blow], score: Score) -> str:
    """Markdown: a line for each kind of blow."""
    rows = []
    for kind in dict.fromkeys(blow.kind for blow in blows):
        these = [blow for blow in blows if blow.kind == kind]
        first = _spread([blow.first for blow in these])
        rows.append([kind, str(len(these)), first, _spread([blow.all for blow in these])])
    return (
        "Seconds until the first stream, and all of them, went on: median (longest).\n\n"
        f"{markdown_table(['blow', 'times', 'first stream', 'all streams'], rows)}\n"
        f"{score.equal} streams equal to their undisturbed twins, "
        f"{len(score.different)} different, {len(score.broken)} broken."
    )


def as_data(blows: list[Blow], score: Score) -> dict[str, Any]:
    """For the JSON file: every blow, and the score."""
    return {
        "blows": msgspec.to_builtins(blows),
        "streams_equal": score.equal,
        "streams_different": score.different,
        "streams_broken": score.broken,
    }


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({max(seconds):.2f})"
