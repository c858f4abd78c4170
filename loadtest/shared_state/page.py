"""The page and the chart of what shared state costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.report import Document, chart, machine_line, sections, table

HEAD = """\
# State that cells share

Processes ask a redis-server and a PostgreSQL on the same machine, by the gateway's own classes, at
fixed times. A rate that can't be reached shows how many requests a second get through, the others
what is added to a request. Each row is the median of its rounds, in which the commits took turns.
Clients and servers share the processors: processor time and the ratio of two rows tell more than
milliseconds.
"""

COLUMNS = {
    "offered/s": "{offered:,.0f}",
    "": "{tree}",
    "reached/s": "{reached:,.0f}",
    "p50, ms": "{p50:,.1f}",
    "p99, ms": "{p99:,.1f}",
    "processor of the gateway, µs": "{processor_us:,.0f}",
    "… of the server, µs": "{server_us:,.0f}",
}
READS = {"reads of the server": "{reads:.2f}"}

SHOWN = 10_000
"""Requests a second."""

KILL_COLUMNS = {
    "": "{name}",
    "limit": "{limit}",
    "most of a key": "{most}",
    "… of its limit": "{share:.2f}",
    "let in": "{accepted:,}",
    "429": "{over_limit:,}",
    "503": "{unavailable:,}",
    "dead for, s": "{dead_for:.1f}",
    "503 for, s": "{refused_for:.1f}",
}


def best(document: Document, part: str, tree: str) -> float:
    """The most requests a second that were reached."""
    return float(max(row["reached"] for row in document[part] if row["tree"] == tree))


def processors(document: Document, part: str, tree: str) -> str:
    """What SHOWN requests a second take, of processors of this machine, at the highest rate."""
    rows = [row for row in document[part] if row["tree"] == tree]
    row = max(rows, key=lambda row: float(row["offered"]))
    gateways, server = (SHOWN * row[key] / 1e6 for key in ("processor_us", "server_us"))
    return f"{gateways:.1f} of gateways and {server:.1f} of the server"


def allowed(document: Document, name: str) -> float:
    """What a key may have of its limit in the minute in which Redis is killed."""
    if name.startswith("local"):
        return 1.0 + document["processes"]
    return 1.0 if "append-only" in name else 2.0


def faults(document: Document) -> list[str]:
    """What isn't as it should be."""
    found = [
        f"{name}: {kill['most']} of {kill['limit']}"
        for name, kill in document["redis_kills"].items()
        if kill["most"] > kill["limit"] * allowed(document, name)
    ]
    lost = document["postgres_kill"]["lost"]
    return [*found, *([f"{lost} acknowledged responses are lost"] if lost else [])]


def text(document: Document) -> str:
    """The whole page."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    line = (
        f"{machine_line(document)}, {document['isa']}, {versions}, commit {document['commit']}; "
        f"{document['processes']} processes, {document['rounds']} rounds of "
        f"{document['seconds']:g} s, load {document['load']:.0f} when it began"
    )
    parts = [HEAD, line]
    for part, title, tool, columns in (
        ("limits", "Limits of requests and tokens, in Redis", "redis_benchmark", COLUMNS | READS),
        ("responses", "Responses, one stored and one read, in PostgreSQL", "pgbench", COLUMNS),
    ):
        before, after = (best(document, part, each) for each in ("before", "after"))
        said = (
            f"Most that was reached: {before:,.0f} a second before, {after:,.0f} after "
            f"({after / before:.1f} times); {tool.replace('_', '-')} reaches "
            f"{document[tool]:,.0f}, of which that is {after / document[tool]:.3f}. By processor "
            f"time, {SHOWN:,} a second take {processors(document, part, 'before')} before, and "
            f"{processors(document, part, 'after')} after."
        )
        parts.append(f"## {title}\n\n{table(columns, document[part])}\n\n{said}")
    return sections([*parts, _redis_kills(document), _postgres_kill(document)])


def _redis_kills(document: Document) -> str:
    rows = [
        {**kill, "name": name, "share": kill["most"] / kill["limit"]}
        for name, kill in document["redis_kills"].items()
    ]
    return (
        "## Redis is killed\n\nWith SIGKILL, when keys have used 0.8 of their limits, and started "
        "again; they ask for 2.25 times their limits, all within a minute."
        f"\n\n{table(KILL_COLUMNS, rows)}"
    )


def _postgres_kill(document: Document) -> str:
    kill = document["postgres_kill"]
    return (
        "## PostgreSQL is killed\n\nWith SIGKILL, and started again after "
        f"{kill['dead_for']:.1f} s: {kill['unavailable']:,} requests got a 503 within "
        f"{kill['refused_for']:.1f} s, {kill['acknowledged']:,} were acknowledged, and "
        f"{kill['lost']} of them are lost."
    )


def draw(path: Path, document: Mapping[str, Any]) -> None:
    """Requests a second that were reached, and processor time of each."""
    titles = {"limits": "limits in Redis", "responses": "responses in PostgreSQL"}
    with chart(path, 2, len(titles), size=(10, 7)) as axes:
        for line, (part, title) in zip(axes, titles.items(), strict=True):
            for plot, key, label in (
                (line[0], "reached", "reached a second"),
                (line[1], "processor_us", "processor of the gateway, µs a request"),
            ):
                for tree in ("before", "after"):
                    rows = [row for row in document[part] if row["tree"] == tree]
                    offered = [row["offered"] for row in rows]
                    plot.plot(offered, [row[key] for row in rows], marker=".", label=tree)
                plot.set(title=f"{title}: {label}", xlabel="offered a second", xscale="log", ylim=0)
                plot.grid(alpha=0.3)
        axes[0][0].legend()
