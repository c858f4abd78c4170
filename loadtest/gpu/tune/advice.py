"""What should be changed, from the rows of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

Row = dict[str, Any]

TIMED = "timed"
LEAST = 1.02
"""Times as fast as the present choice: what is less isn't worth other bits."""
WORST = 0.98
"""In no shape may it be slower than that."""


def by_setting(rows: list[Row]) -> dict[str, dict[int, list[Row]]]:
    """Each setting's candidates, by number, with their rows."""
    found: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        found.setdefault(row["setting"], {}).setdefault(row["number"], []).append(row)
    return found


def present_failures(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.get("present") and row["status"] != TIMED]


def speed(row: Row) -> float:
    """Times as fast as the present choice, timed in turns with it."""
    return float(row["present_seconds"] / row["seconds"])


def mean_speeds(found: dict[int, list[Row]]) -> dict[int, float]:
    """The geometric means over all shapes, of the candidates that came through all of them."""
    shapes = len(shapes_of(found))
    return {
        number: geometric_mean(map(speed, rows))
        for number, rows in found.items()
        if len(rows) == shapes and all(row["status"] == TIMED for row in rows)
    }


def shapes_of(found: dict[int, list[Row]]) -> list[str]:
    """As the candidates that came through all of them had them. A present choice may have failed
    after it was timed."""
    timed = ([row["shape"] for row in rows if row["status"] == TIMED] for rows in found.values())
    return max(timed, key=len)


def changes(rows: list[Row], shared: Mapping[str, str]) -> list[dict[str, Any]]:
    """Of each setting, the fastest candidate that is worth it: setting, present, tiles (all fields
    by name), mean, worst, best (speeds), and shared.

    shared: setting to what else a change of it moves.
    """
    made = []
    for setting, found in by_setting(rows).items():
        now = next((some[0]["tiles"] for some in found.values() if some[0]["present"]), None)
        worth = {
            number: mean
            for number, mean in mean_speeds(found).items()
            if mean >= LEAST and min(map(speed, found[number])) >= WORST
        }
        if now is None or not worth:
            continue
        best = max(worth, key=worth.__getitem__)
        speeds = [speed(row) for row in found[best]]
        made.append(
            {
                "setting": setting,
                "present": now,
                "tiles": found[best][0]["tiles"],
                "mean": worth[best],
                "worst": min(speeds),
                "best": max(speeds),
                "shared": shared.get(setting, ""),
            }
        )
    return made


def sentences(document: dict[str, Any]) -> list[str]:
    """What to change, and which present choices failed. document: tune.json."""
    lines = []
    for each in document["changes"]:
        change = f"from {written(each['present'])} to {written(each['tiles'])}"
        speeds = f"{gain(each['mean'])} faster ({gain(each['worst'])} to {gain(each['best'])})"
        lines.append(f"change {each['setting']} {change}: {speeds}")
        if each["shared"]:
            lines.append(f"mind, of {each['setting']}: {each['shared']}")
    if not lines:
        lines.append("change nothing: no candidate was worth it")
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
