"""What a step of decodes and drafts takes, by its rows."""

from __future__ import annotations

import math

EXACT = 16
"""Up to so many rows each number of them is told apart; above, quarters of a power of two."""

BUCKETS = 64
WEIGHT = 0.05
"""Of the newest step in what is known of its like, once there were as many as that says."""

FEW = 20
"""Steps that are enough to be sure of what their like take."""


class StepSeconds:
    """A curve through the steps that were seen. It needn't be straight: where weights are read for
    many rows as fast as for one, further ones cost nothing up to some number of them."""

    __slots__ = ("_known", "_rows", "_seconds", "_steps", "largest")

    def __init__(self) -> None:
        self.largest = 0  # rows of the largest step that was seen
        # By bucket, blended; 0 rows: no step was seen.  Of seconds it is their logarithm that is
        # blended: a machine that is busy with something else has steps that last many times as
        # long, and one of them says little.
        self._rows = [0.0] * BUCKETS
        self._seconds = [0.0] * BUCKETS
        self._steps = [0] * BUCKETS
        self._known: dict[tuple[int, float], float] = {}
        """What `of` has returned since the last step."""

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows was computed in so many seconds; 0: unknown, and not counted."""
        if seconds <= 0.0 or rows < 1:
            return
        self._known.clear()
        self.largest = max(self.largest, rows)
        at = _bucket(rows)
        self._steps[at] += 1
        weight = max(WEIGHT, 1.0 / self._steps[at])
        self._rows[at] += weight * (rows - self._rows[at])
        if self._steps[at] == 1:
            self._seconds[at] = seconds
        else:
            self._seconds[at] *= (seconds / self._seconds[at]) ** weight

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
            found = self._known[rows, each] = self._between(rows, each)
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
