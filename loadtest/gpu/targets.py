"""What was aimed at on one H200, and what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadtest.gpu.figures import Row, idle_between, limits, rows, share

MODEL, MODE = "Llama-3.1-8B", "default"


@dataclass(frozen=True)
class Outcome:
    """aim, value: shares; value is None where it wasn't measured.  at_most: less is better."""

    name: str
    aim: float
    value: float | None
    at_most: bool = False

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        met = self.value < self.aim if self.at_most else self.value >= self.aim
        return "met" if met else "missed"


def outcomes(document: dict[str, Any]) -> list[Outcome]:
    limit = limits(document)
    own = {"model": MODEL, "mode": MODE}

    def worst(part: str, **wanted: Any) -> float | None:
        return _least(list(rows(document, part, **wanted)), lambda row: share(row, limit))

    idle = [idle_between(row) for row in rows(document, "steps", what="idle", batch=64, **own)]
    return [
        *(
            Outcome(
                f"decode, {MODEL}, batch {batch}: of the memory limit",
                0.85,
                worst("steps", what="decode", batch=batch, **own),
            )
            for batch in (1, 64)
        ),
        Outcome(
            f"prefill, {MODEL}: of the matrix limit",
            0.65,
            worst("steps", what="prefill", **own),
        ),
        Outcome(
            "paged decode attention, 64 x 8192: of the copy bandwidth",
            0.90,
            worst("kernels-attention", op="decode attention", shape="64 x 8192"),
        ),
        Outcome(
            f"GPU idle between decode steps, {MODEL}, batch 64",
            0.02,
            max(idle, default=None),
            at_most=True,
        ),
    ]


def _least(some: list[Row], figure: Callable[[Row], float | None]) -> float | None:
    known = [value for value in map(figure, some) if value is not None]
    return min(known, default=None)
