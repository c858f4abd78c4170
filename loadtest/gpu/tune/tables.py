"""tune.md: a table for each setting."""

from __future__ import annotations

from collections import Counter
from typing import Any

from loadtest.gpu import figures
from loadtest.gpu.report import NONE, head, percent
from loadtest.gpu.tune import advice
from loadtest.gpu.tune.advice import TIMED, Row
from penstock.bench.load.report import markdown_table

SHOWN = 10
"""The fastest candidates of a setting; the JSON file has all."""
TOLD = (
    "In each shape: µs, times as fast as the present choice (timed in turns with it, each call "
    "with a cold cache,\nmedians), and how near the machine's limit: bytes at the copy bandwidth, "
    "or operations at the matrix rate.\n"
)


def to_markdown(document: dict[str, Any]) -> str:
    """document: tune.json."""
    sections = [_setting(document, name) for name in advice.settings_of(document["rows"])]
    return "\n".join([head(document), _changes(document), TOLD, *sections, _left_out(document)])


def _changes(document: dict[str, Any]) -> str:
    sentences = [*advice.sentences(document["changes"]), *advice.failures(document)]
    lines = [f"- {sentence}\n" for sentence in sentences]
    return "## To be changed in tiles.py\n" + "".join(lines)


def _setting(document: dict[str, Any], setting: str) -> str:
    limit = figures.limits(document)
    found = advice.by_candidate(document["rows"], setting)
    shapes = advice.shapes_of(found)
    means = {number: advice.mean_speed(rows, len(shapes)) for number, rows in found.items()}
    order = sorted(found, key=lambda number: -(means[number] or 0.0))
    shown = [number for number in order if means[number] is not None][:SHOWN]
    shown += [number for number in found if found[number][0]["present"] and number not in shown]
    lines = []
    for number in shown:
        rows = found[number]
        by_shape = {row["shape"]: row for row in rows if row["status"] == TIMED}
        cells = [_cell(by_shape.get(shape), limit) for shape in shapes]
        mean = means[number]
        name = ", ".join(map(str, rows[0]["tiles"].values()))
        lines.append(
            [
                f"**{name}** (present)" if rows[0]["present"] else name,
                NONE if mean is None else f"{mean:.3f}",
                *cells,
                *(_number(rows[0].get(each)) for each in ("registers", "spilled", "shared")),
            ]
        )
    first = next(iter(found.values()))[0]["tiles"]
    header = [", ".join(first), "speed", *shapes, "registers", "bytes spilled", "shared"]
    text = f"## {setting}\n{markdown_table(header, lines)}\n"
    return text + _rest(found, len(shown), len(shapes))


def _cell(row: Row | None, limit: Any) -> str:
    if row is None:
        return NONE
    near = percent(figures.share(row, limit))
    return f"{1e6 * row['seconds']:,.1f}; {advice.speed(row):.2f}; {near}"


def _number(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def _rest(found: dict[int, list[Row]], shown: int, shapes: int) -> str:
    """What isn't in the table, and why."""
    lines = [f"{shown} of {len(found)} candidates are shown."]
    cut = [rows for rows in found.values() if len(rows) < shapes and rows[-1]["status"] == TIMED]
    if cut:
        lines.append(f"{len(cut)} were much slower in the first shape, and not timed in others.")
    failed = [row for rows in found.values() for row in rows if row["status"] != TIMED]
    for (status, reason), count in Counter((r["status"], r["reason"]) for r in failed).items():
        example = next(r for r in failed if (r["status"], r["reason"]) == (status, reason))
        lines.append(f"{count} {status}, as {advice.written(example['tiles'])}: {reason}")
    return "\n".join(f"- {line}" for line in lines) + "\n"


def _left_out(document: dict[str, Any]) -> str:
    left = document["left_out"]
    late = document["compiled_late"]
    notes = f"{late} kernels were compiled by the process that measures.\n" if late else ""
    if not left:
        return f"All {document['candidates']} candidates had their turn.\n{notes}"
    counts = Counter(each["setting"] for each in left)
    waiting = sum(not each["compiled"] for each in left)
    text = f"## Left out\nThe time was over before {len(left)} of {document['candidates']} "
    text += f"candidates had their turn, {waiting} of them not compiled yet:\n"
    text += "".join(f"- {setting}: {count}\n" for setting, count in counts.items())
    return f"{text}\n{notes}"
