"""What a step of decodes and drafts takes, by its rows."""

from __future__ import annotations

import math

EXACT = 16
"""Up to so many rows each number of them is told apart; above, quarters of a power of two."""

BUCKETS = 64
WEIGHT = 0.05
"""Of the newest step in what is known of its like, once there were as many as that says."""

PACE_WEIGHT = 0.1
"""Of the newest step in how busy the machine is at present."""

MOST = 0.7
"""The logarithm of how many times as long a step may take as expected. Of one that takes longer
only so much counts: it was held up by something else."""

FEW = 20
"""Steps that are enough to be sure of what their like take."""


class StepSeconds:
    """A curve through the steps that were seen. It needn't be straight: where weights are read for
    many rows as fast as for one, further ones cost nothing up to some number of them.

    A machine may be busy with something else for a while. So the curve is kept apart from a pace by
    which all of it is multiplied: what was seen of large steps in such a time, and of small ones
    before it, would else say that large ones cost more than they do.
    """

    __slots__ = ("_known", "_pace", "_rows", "_seconds", "_steps", "largest")

    def __init__(self) -> None:
        self.largest = 0  # rows of the largest step that was seen
        # By bucket, blended; 0 rows: no step was seen.  Of seconds it is their logarithm that is
        # blended: a step that is held up lasts many times as long, and says little.
        self._rows = [0.0] * BUCKETS
        self._seconds = [0.0] * BUCKETS
        self._steps = [0] * BUCKETS
        self._pace = 1.0
        """How many times as long steps take at present as the buckets say."""
        self._known: dict[tuple[int, float], float] = {}
        """What `of` has returned since the last step."""

    def observe(self, rows: int, seconds: float, each: float) -> None:
        """A step of so many rows was computed in so many seconds; 0: unknown, and not counted.
        each: see `of`."""
        if seconds <= 0.0 or rows < 1:
            return
        expected = self.of(rows, each) or seconds
        self._known.clear()
        self.largest = max(self.largest, rows)
        at = _bucket(rows)
        longer = max(-MOST, min(MOST, math.log(seconds / expected)))
        self._steps[at] += 1
        if self._steps[at] == 1:
            self._rows[at] = rows
            self._seconds[at] = expected * math.exp(longer) / self._pace
            return
        self._pace *= math.exp(PACE_WEIGHT * longer)
        weight = max(WEIGHT, 1.0 / self._steps[at])
        self._rows[at] += weight * (rows - self._rows[at])
        self._seconds[at] *= math.exp(weight * (1.0 - PACE_WEIGHT) * longer)

    def forget_rare(self) -> None:
        """What was seen only a few times, as it may have been slow for another reason."""
        self._known.clear()
        for at, steps in enumerate(self._steps):
            if steps < FEW:
                self._steps[at], self._rows[at] = 0, 0.0

    def of(self, rows: int, each: float) -> float:
        """Seconds of a step of so many rows; 0.0: none was seen. each: seconds of a further row
        where only smaller or only larger steps were seen."""
        found = self._known.get((rows, each))
        if found is None:
            found = self._pace * self._between(rows, each / self._pace)
            self._known[rows, each] = found
        return found

    def _between(self, rows: int, each: float) -> float:
        if rows < 1:
            return 0.0
        at = _bucket(rows)
        below = next((b for b in range(at, -1, -1) if self._rows[b]), None)
        above = next((b for b in range(at, BUCKETS) if self._rows[b]), None)
        if below is None:
            return 0.0 if above is None else self._smaller(above, rows, each)
        if above is None or above == below:
            if rows < self._rows[below]:  # Steps of one bucket differ, too.
                return self._smaller(below, rows, each)
            return self._seconds[below] + each * (rows - self._rows[below])
        # No step takes less time than a smaller one: what says so was slow for another reason.
        low, high = self._seconds[below], max(self._seconds[below], self._seconds[above])
        share = (rows - self._rows[below]) / (self._rows[above] - self._rows[below])
        return low + share * (high - low)

    def _smaller(self, above: int, rows: int, each: float) -> float:
        known, seconds = self._rows[above], self._seconds[above]
        return max(seconds - each * (known - rows), seconds * rows / known)


def _bucket(rows: int) -> int:
    if rows <= EXACT:
        return rows
    return min(EXACT + math.ceil(4 * math.log2(rows / EXACT)), BUCKETS - 1)
