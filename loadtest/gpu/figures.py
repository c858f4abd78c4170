"""What the parts' rows say, put beside the machine's limits. Rows are as the parts wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loadtest.gpu.cost import Limits

Row = dict[str, Any]
PENSTOCK = "penstock"


def rows(document: dict[str, Any], prefix: str, **wanted: Any) -> Iterator[Row]:
    """Of all parts whose names begin so, those with these values."""
    for name, part in document.get("parts", {}).items():
        if name.startswith(prefix):
            for row in part["rows"]:
                if all(row.get(key) == value for key, value in wanted.items()):
                    yield row


def limits(document: dict[str, Any]) -> Limits | None:
    """The best of what was measured; None where that failed."""
    best = {
        name: max((row["per_s"] for row in rows(document, "limits", name=name)), default=0.0)
        for name in ("copy", "matrix")
    }
    return Limits(**best) if all(best.values()) else None


def share(row: Row, limit: Limits | None, seconds: str = "seconds") -> float | None:
    """How near a row's work came to the machine's limit: 1 is as fast as it can be."""
    taken = row.get(seconds)
    if limit is None or not taken:
        return None
    least = limit.seconds(row.get("bytes") or 0.0, row.get("flops") or 0.0)
    return least / taken if least else None


def output_rate(row: Row) -> float:
    """Tokens/s of answers."""
    return float(row["output_tokens"] / row["seconds"])


def total_rate(row: Row) -> float:
    """Tokens/s of prompts and answers."""
    return float((row["prompt_tokens"] + row["output_tokens"]) / row["seconds"])


def own_run(document: dict[str, Any], row: Row) -> Row | None:
    """Penstock's run of the same requests."""
    same = {"system": PENSTOCK, "model": row["model"], "requests": row["requests"]}
    return next(rows(document, "end-to-end", **same), None)


def idle_between(row: Row) -> float:
    """Of the profiled steps' time, the device's share of idling between them, at most."""
    return float(row["between"] / row["span"])
