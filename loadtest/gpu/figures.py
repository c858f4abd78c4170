"""What the parts' rows say, put beside the machine's limits. Rows are as the parts wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from loadtest.gpu.cost import Limits

Row = dict[str, Any]
PENSTOCK = "penstock"


def rows(document: dict[str, Any], *prefixes: str, **wanted: Any) -> Iterator[Row]:
    """Rows of all parts whose names begin so, those with these values."""
    for prefix in prefixes:
        for name, part in document.get("parts", {}).items():
            if name.startswith(prefix):
                for row in part["rows"]:
                    if all(row.get(key) == value for key, value in wanted.items()):
                        yield row


def limits(document: dict[str, Any]) -> Limits | None:
    """The best of what was measured; None where that failed."""
    copy, read, matrix = (
        max((row["per_s"] for row in rows(document, "limits", name=name)), default=0.0)
        for name in ("copy", "read", "matrix")
    )
    return Limits(max(copy, read), matrix) if copy and matrix else None


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


def idle_between(row: Row, _: Limits | None = None) -> float:
    """The device's share of idling between the profiled steps, of their time, at most."""
    return float(row["between"] / row["span"])


ALL, NOTHING = "all of them, overlaps twice", "nothing runs: unexplained"


def step_kernels(row: Row) -> Iterator[Row]:
    """Yields each kernel of a profiled step: its `name`, `calls`, `seconds` and `share` of the step
    without the profiler; then what they add up to, and what the step takes beyond the time in which
    something runs."""
    kernels = row.get("kernels") or []
    if not kernels:
        return
    added = sum(each["seconds"] for each in kernels)
    unexplained = row["step_seconds"] - row["busy"] / row["steps"]
    sums = [
        {"name": ALL, "calls": sum(each["calls"] for each in kernels), "seconds": added},
        {"name": NOTHING, "calls": 0.0, "seconds": unexplained},
    ]
    for each in (*kernels, *sums):
        yield {**row, **each, "share": each["seconds"] / row["step_seconds"]}


MODEL = "Llama-3.1-8B"


@dataclass(frozen=True)
class Target:
    """What is aimed at on one H200. Figures are shares; the worst row counts."""

    name: str
    aim: float
    part: str
    wanted: dict[str, Any] = field(default_factory=dict)  # of the part's rows
    figure: Callable[[Row, Limits | None], float | None] = share
    at_most: bool = False  # less is better

    def measured(self, document: dict[str, Any]) -> float | None:
        """None where it wasn't."""
        limit = limits(document)
        found = [self.figure(row, limit) for row in rows(document, self.part, **self.wanted)]
        known = [value for value in found if value is not None]
        return max(known, default=None) if self.at_most else min(known, default=None)

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        met = value < self.aim if self.at_most else value >= self.aim
        return "met" if met else "missed"


_OWN = {"model": MODEL, "mode": "default"}
TARGETS = (
    *(
        Target(
            f"decode, {MODEL}, batch {batch}: of the memory limit",
            0.85,
            "steps",
            {**_OWN, "what": "decode", "batch": batch},
        )
        for batch in (1, 64)
    ),
    Target(f"prefill, {MODEL}: of the matrix limit", 0.65, "steps", {**_OWN, "what": "prefill"}),
    Target(
        "paged decode attention, 64 x 8192: of the memory limit",
        0.90,
        "kernels-attention",
        {"op": "decode attention", "shape": "64 x 8192"},
    ),
    Target(
        f"GPU idle between decode steps, {MODEL}, batch 64",
        0.02,
        "steps",
        {**_OWN, "what": "idle", "batch": 64},
        idle_between,
        at_most=True,
    ),
)
