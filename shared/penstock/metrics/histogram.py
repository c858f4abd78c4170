"""Counts by bucket. One observation is a search in a dozen numbers and an addition: it is made for
each token, where prometheus_client's own takes a lock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """bounds: upper ends of the buckets, ascending, each belonging to its bucket."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @classmethod
    def counted(cls, bounds: tuple[float, ...], counts: Sequence[int], total: float) -> Histogram:
        """One that another process has counted. counts: see `counts`.  total: sum of all values.

        Raises ValueError where there is not one count for each bucket.
        """
        if len(counts) != len(bounds) + 1:
            raise ValueError(f"{len(bounds)} bounds have {len(bounds) + 1} buckets: {len(counts)}")
        histogram = cls(bounds)
        histogram._counts, histogram._sum = list(counts), total
        return histogram

    @property
    def counts(self) -> tuple[int, ...]:
        """How many values each bucket has, the last being those beyond all bounds."""
        return tuple(self._counts)

    def copy(self) -> Histogram:
        """A copy of the histogram as it is now, for another thread to read."""
        copied = Histogram(self._bounds)
        copied._counts, copied._sum = self._counts.copy(), self._sum
        return copied

    @property
    def total(self) -> float:
        """Sum of all values."""
        return self._sum

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper end, how many values are no greater), the last end being +Inf."""
        ends = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(ends, map(float, accumulate(self._counts)), strict=True))
