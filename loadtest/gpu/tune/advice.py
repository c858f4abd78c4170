"""What should be changed, from the rows of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]

TIMED = "timed"
LEAST = 1.02
"""Times as fast as the present choice: what is less isn't worth other bits."""
WORST = 0.98
"""In no shape may it be slower than that."""


def by_candidate(rows: list[Row], setting: str) -> dict[int, list[Row]]:
    """number to its rows, of one setting."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        if row["setting"] == setting:
            found.setdefault(row["number"], []).append(row)
    return found


def settings_of(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["setting"] for row in rows))


def present_failures(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.get("present") and row["status"] != TIMED]


def speed(row: Row) -> float:
    """Times as fast as the present choice, timed in turns with it."""
    return float(row["present_seconds"] / row["seconds"])


def mean_speed(rows: list[Row], shapes: int) -> float | None:
    """The geometric mean over a candidate's shapes; None where one is missing or failed."""
    if len(rows) != shapes or any(row["status"] != TIMED for row in rows):
        return None
    weight = sum(row["weight"] for row in rows)
    return math.exp(sum(row["weight"] * math.log(speed(row)) for row in rows) / weight)


def shapes_of(found: dict[int, list[Row]]) -> list[str]:
    """As the candidates that came through all of them had them. A present choice may have failed
    after it was timed."""
    timed = ([row["shape"] for row in rows if row["status"] == TIMED] for rows in found.values())
    return max(timed, key=len)


def changes(rows: list[Row], moves: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """Of each setting, the fastest candidate that is worth it: setting, kind, present, tiles (all
    fields by name), mean, worst, best (speeds), and of `moves` what is said of fields that change.

    moves: setting to field to what else a change of it moves.
    """
    made = []
    for setting in settings_of(rows):
        found = by_candidate(rows, setting)
        shapes = len(shapes_of(found))
        now = next((some[0]["tiles"] for some in found.values() if some[0]["present"]), None)
        worth = []
        for some in found.values():
            mean = mean_speed(some, shapes)
            if mean is not None and mean >= LEAST and min(map(speed, some)) >= WORST:
                worth.append((mean, some))
        if now is None or not worth:
            continue
        mean, some = max(worth, key=lambda each: each[0])
        speeds = [speed(row) for row in some]
        made.append(
            {
                "setting": setting,
                "kind": some[0]["kind"],
                "present": now,
                "tiles": some[0]["tiles"],
                "mean": mean,
                "worst": min(speeds),
                "best": max(speeds),
                "moves": [
                    told
                    for name, told in moves.get(setting, {}).items()
                    if some[0]["tiles"][name] != now[name]
                ],
            }
        )
    return made


def sentences(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return ["change nothing: no candidate was worth it"]
    lines = []
    for each in found:
        change = f"from {written(each['present'])} to {written(each['tiles'])}"
        speeds = f"{gain(each['mean'])} faster ({gain(each['worst'])} to {gain(each['best'])})"
        lines.append(f"change {each['setting']} {change}: {speeds}")
        if each["moves"]:
            lines.append(f"mind, of {each['setting']}: {'; '.join(each['moves'])}")
    return lines


def failures(document: dict[str, Any]) -> list[str]:
    """Of present choices, and how many candidates were not tried for them."""
    lines = []
    for row in present_failures(document["rows"]):
        setting, shape = row["setting"], f" in {row['shape']}" if row["shape"] else ""
        lines.append(
            f"{setting}, the present choice {written(row['tiles'])}: {row['status']}{shape}: "
            f"{row['reason']}; {document['dropped'][setting]} candidates were not tried"
        )
    return lines


def written(tiles: dict[str, int]) -> str:
    return "(" + ", ".join(f"{name}={value}" for name, value in tiles.items()) + ")"


def gain(speed_up: float) -> str:
    return f"{100 * (speed_up - 1):.1f} %"
