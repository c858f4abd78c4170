"""Figures of many values."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The value at that share of the way through the values in order; 0 where there are none."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def distribution(values: Iterable[float], scale: float = 1.0) -> dict[str, float]:
    """How many values there are, and p50, p90, p99 and the largest of them times `scale`."""
    scaled = [scale * value for value in values]
    return {
        "count": len(scaled),
        "p50": statistics.median(scaled) if scaled else 0.0,
        "p90": percentile(scaled, 0.9),
        "p99": percentile(scaled, 0.99),
        "max": max(scaled, default=0.0),
    }
