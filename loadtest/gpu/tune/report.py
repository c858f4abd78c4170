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
    told = "".join(f"- {sentence}\n" for sentence in advice.sentences(document))
    found = advice.by_setting(document["rows"])
    sections = [_setting(document, *each) for each in found.items()]
    changes = f"## To be changed in tiles.py\n{told}"
    return "\n".join([head(document), changes, TOLD, *sections, _left_out(document)])


def _setting(document: dict[str, Any], setting: str, found: dict[int, list[Row]]) -> str:
    limit = figures.limits(document)
    shapes, means = advice.shapes_of(found), advice.mean_speeds(found)
    shown = sorted(means, key=lambda number: -means[number])[:SHOWN]
    shown += [number for number in found if found[number][0]["present"] and number not in shown]
    lines = []
    for number in shown:
        first = found[number][0]
        by_shape = {row["shape"]: row for row in found[number] if row["status"] == TIMED}
        name = ", ".join(map(str, first["tiles"].values()))
        lines.append(
            [
                f"**{name}** (present)" if first["present"] else name,
                f"{means[number]:.3f}" if number in means else NONE,
                *(_cell(by_shape.get(shape), limit) for shape in shapes),
                *(_number(first.get(each)) for each in ("registers", "spilled", "shared")),
            ]
        )
    fields = ", ".join(next(iter(found.values()))[0]["tiles"])
    header = [fields, "speed", *shapes, "registers", "bytes spilled", "shared"]
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
    cut = sum(len(rows) < shapes and rows[-1]["status"] == TIMED for rows in found.values())
    if cut:
        lines.append(f"{cut} were much slower in the first shape, and not timed in others.")
    failed: dict[tuple[str, str], list[Row]] = {}
    for row in (row for rows in found.values() for row in rows if row["status"] != TIMED):
        failed.setdefault((row["status"], row["reason"]), []).append(row)
    for (status, reason), rows in failed.items():
        example = advice.written(rows[0]["tiles"])
        lines.append(f"{len(rows)} {status}, as {example}: {reason}")
    return "\n".join(f"- {line}" for line in lines) + "\n"


def _left_out(document: dict[str, Any]) -> str:
    left, everything = document["left_out"], document["candidates"]
    if not left:
        return f"All {everything} candidates had their turn.\n"
    waiting = sum(not each["compiled"] for each in left)
    text = f"## Left out\nThe time was over before {len(left)} of {everything} "
    text += f"candidates had their turn, {waiting} of them not compiled yet:\n"
    counts = Counter(each["setting"] for each in left)
    return text + "".join(f"- {setting}: {count}\n" for setting, count in counts.items())
