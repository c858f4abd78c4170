"""The page and the chart of what sessions cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.report import Document, chart, machine_line, sections, table

HEAD = """\
# Sessions that carry nothing

Each run: one engine core and many front ends, the figures of the engine core; then one front end
and many engine cores, the figures of the front end. Others work on the machine: processor seconds
and counts tell, wall times (back, first token) only roughly. At rest means beats and status and
nothing else, for the seconds that the page says. A restart is a `kill -9` and a new start, until
all sessions are ready again: of the engine core since the first is back, of the front end since it
dials. Its processor seconds have the engine core's whole start in them, and of the front end none
of its own. An engine core's memory at rest has in it what is left of sending its tokenizer to all
front ends at once, when they started; after its restart, where it sends none, it has not.
"""

COLUMNS = {
    "sessions": "{sessions}",
    "processor, ms/s": "{processor_ms:.2f}",
    "… a session": "{each_ms:.3f}",
    "messages/s": "{messages:,.0f}",
    "kB/s": "{kb:,.1f}",
    "memory, MiB": "{mib:,.1f}",
    "… after the restart": "{back_mib}",
    "first token, ms": "{first_ms:.1f}",
    "p99": "{first_p99_ms:.1f}",
    "back, s": "{back_s:.2f}",
    "… processor, s": "{back_processor:.2f}",
    "… MB": "{back_mb:,.1f}",
}

WAYS = {
    "front_ends": "One engine core, many front ends",
    "engine_cores": "One front end, many engine cores",
}


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row in the table's units."""
    return {
        **row,
        "processor_ms": 1000 * row["processor"],
        "each_ms": 1000 * row["processor"] / row["sessions"],
        "messages": row["to_engines"] + row["from_engines"],
        "kb": row["bytes"] / 1000,
        "mib": row["pss"] / 2**20,
        "back_mib": f"{row['back_pss'] / 2**20:,.1f}" if "back_pss" in row else "",
        "back_mb": row["back_bytes"] / 1e6,
    }


def text(document: Document) -> str:
    """Both tables of a run."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    line = f"{machine_line(document)}, {document['isa']}, {versions}, commit {document['commit']}"
    line = f"{line}; at rest for {document['seconds']:g} s"
    tables = (
        f"{title}:\n\n{table(COLUMNS, map(shown, document[way]))}" for way, title in WAYS.items()
    )
    return sections([line, *tables])


PLOTS = {
    "processor ms/s at rest": "processor_ms",
    "messages/s at rest": "messages",
    "kB/s at rest": "kb",
    "MB until all are back": "back_mb",
}


def draw(path: Path, runs: Mapping[str, Any]) -> None:
    """What grows with the number of sessions: a row of plots for each way, a line for each run."""
    with chart(path, len(PLOTS), len(WAYS), size=(15, 7)) as axes:
        for line, (way, title) in zip(axes, WAYS.items(), strict=True):
            for plot, (label, name) in zip(line, PLOTS.items(), strict=True):
                for run, document in runs.items():
                    rows = [shown(row) for row in document[way]]
                    sessions = [row["sessions"] for row in rows]
                    plot.plot(sessions, [row[name] for row in rows], marker=".", label=run)
                plot.set(title=label, xlabel="sessions", xscale="log", yscale="log")
                plot.grid(alpha=0.3)
            line[0].set_ylabel(title)
        axes[0][0].legend()
