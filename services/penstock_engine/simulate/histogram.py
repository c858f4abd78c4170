"""Percentiles of any number of values in fixed memory."""

from __future__ import annotations

import math

RESOLUTION = 0.01
"""Width of a bucket, as a share of the value: what a percentile may be off by."""

LEAST, MOST = 1e-5, 1e7
_SCALE = 1 / math.log1p(RESOLUTION)
_BUCKETS = int(math.log(MOST / LEAST) * _SCALE) + 2


class LatencyHistogram:
    """A histogram of seconds, from 10 µs up; less counts as 10 µs."""

    __slots__ = ("count", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.count = 0
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        at = int(math.log(value / LEAST) * _SCALE) + 1 if value > LEAST else 0
        self.counts[min(at, _BUCKETS - 1)] += times
        self.count += times
        self.total += value * times

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def percentile(self, percent: float) -> float:
        """NaN of nothing."""
        if not self.count:
            return math.nan
        rank = max(1, math.ceil(self.count * percent / 100))
        passed = 0
        for at, count in enumerate(self.counts):
            passed += count
            if passed >= rank:
                return middle(at)
        return MOST

    def curve(self) -> list[tuple[float, float]]:
        """(value, share of values up to it), for drawing."""
        points, passed = [], 0
        for at, count in enumerate(self.counts):
            if count:
                passed += count
                points.append((middle(at), passed / self.count))
        return points


def middle(bucket: int) -> float:
    """The value that stands for a bucket."""
    return LEAST if bucket == 0 else float(LEAST * math.exp((bucket - 0.5) / _SCALE))
