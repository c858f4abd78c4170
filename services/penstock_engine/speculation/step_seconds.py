"""What a step of decodes and drafts takes, by its rows."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import NamedTuple

EXACT = 16
"""Up to so many rows each number of them is told apart; above, quarters of a power of two."""

BUCKETS = 64
WEIGHT = 0.05
"""Weight of the newest step in what is known of its like, once 1 / WEIGHT of them were seen."""

PACE_WEIGHT = 0.1
"""Weight of the newest step in how busy the machine is at present."""

MOST = 0.7
"""The logarithm of how many times as long a step may take as expected. Of one that takes longer
only so much counts: it was held up by something else."""

FEW = 20
"""Steps that are enough to be sure of what their like take."""

FADE = 0.95
"""Weight that a step's evidence keeps after each further one."""

MOST_EVIDENCE, LEAST_EVIDENCE = 1e100, 1e-100
"""Evidence of the newest step above which all of it is scaled down, and the least that is left of
what was seen long ago."""


class Point(NamedTuple):
    """A point of the curve: steps of so many rows take so long, at an ordinary pace. own: the
    logarithm of how many times as long those of its bucket took."""

    rows: float
    seconds: float
    own: float


class StepSeconds:
    """A curve through the steps that were seen. It needn't be straight: where weights are read for
    many rows as fast as for one, further ones cost nothing up to some number of them.

    A machine may be busy with something else for a while. So the curve is kept apart from a pace by
    which all of it is multiplied: what was seen of large steps in such a time, and of small ones
    before it, would else say that large ones cost more than they do.

    No step takes less time than a smaller one. Where that is what was seen, both are given the mean
    of the two, in which what was seen lately counts most: a size that had no step for long, because
    all of its steps have drafts, would else be thought as slow as the machine was then. This is
    the pool-adjacent-violators algorithm (Ayer et al., 1955), on logarithms.
    """

    __slots__ = (
        "_curve",
        "_evidence",
        "_known",
        "_newest",
        "_pace",
        "_rows",
        "_seconds",
        "_steps",
        "largest",
    )

    def __init__(self) -> None:
        self.largest = 0  # rows of the largest step that was seen
        # By bucket, blended; 0 rows: no step was seen.  Of seconds it is their logarithm that is
        # blended: a step that is held up lasts many times as long, and says little.
        self._rows = [0.0] * BUCKETS
        self._seconds = [0.0] * BUCKETS
        self._steps = [0] * BUCKETS
        self._evidence = [0.0] * BUCKETS
        """How much each counts where they contradict one another."""
        self._newest = 1.0
        """Evidence of the next step. It grows, which is how that of those before it fades."""
        self._curve: list[Point] | None = None
        """What the buckets say, in order; None: not since the last step."""
        self._pace = 1.0
        """How many times as long steps take at present as the buckets say."""
        self._known: dict[tuple[int, float], float] = {}
        """What `of` has returned since the last step."""

    def observe(self, rows: int, seconds: float, each: float) -> None:
        """A step of so many rows was computed in so many seconds; 0: unknown, and not counted.
        each: see `of`."""
        if seconds <= 0.0 or rows < 1:
            return
        at = _bucket(rows)
        expected = (self.of(rows, each) or seconds) * self._own(at)
        self._known.clear()
        self.largest = max(self.largest, rows)
        longer = max(-MOST, min(MOST, math.log(seconds / expected)))
        self._steps[at] += 1
        self._count(at)
        if self._steps[at] == 1:
            self._rows[at] = rows
            self._seconds[at] = expected * math.exp(longer) / self._pace
            return
        self._pace *= math.exp(PACE_WEIGHT * longer)
        weight = max(WEIGHT, 1.0 / self._steps[at])
        self._rows[at] += weight * (rows - self._rows[at])
        self._seconds[at] *= math.exp(weight * (1.0 - PACE_WEIGHT) * longer)

    def _own(self, at: int) -> float:
        """How many times as long as the curve says the steps of a bucket took."""
        if not self._steps[at]:
            return 1.0
        curve = self._points()
        return math.exp(curve[bisect_left(curve, (self._rows[at],))].own)

    def _count(self, at: int) -> None:
        """A step of the bucket was seen."""
        self._curve = None
        self._evidence[at] += self._newest
        self._newest /= FADE
        if self._newest > MOST_EVIDENCE:
            scaled = (each / self._newest for each in self._evidence)
            self._evidence = [max(each, LEAST_EVIDENCE) for each in scaled]
            self._newest = 1.0

    def forget_rare(self) -> None:
        """Forgets what was seen only a few times, as it may have been slow for another reason."""
        self._known.clear()
        self._curve = None
        for at, steps in enumerate(self._steps):
            if steps < FEW:
                self._steps[at], self._rows[at], self._evidence[at] = 0, 0.0, 0.0

    def of(self, rows: int, each: float) -> float:
        """Seconds of a step of so many rows; 0.0: none was seen. each: seconds of a further row
        where only smaller or only larger steps were seen."""
        found = self._known.get((rows, each))
        if found is None:
            found = self._pace * self._between(rows, each / self._pace)
            self._known[rows, each] = found
        return found

    def _between(self, rows: int, each: float) -> float:
        curve = self._points()
        if rows < 1 or not curve:
            return 0.0
        above = bisect_left(curve, (rows,))
        if above == len(curve):
            return curve[-1].seconds + each * (rows - curve[-1].rows)
        high = curve[above]
        if not above:
            shorter = high.seconds - each * (high.rows - rows)
            return max(shorter, high.seconds * rows / high.rows)
        low = curve[above - 1]
        share = (rows - low.rows) / (high.rows - low.rows)
        return low.seconds + share * (high.seconds - low.seconds)

    def _points(self) -> list[Point]:
        if self._curve is None:
            self._curve = self._pooled()
        return self._curve

    def _pooled(self) -> list[Point]:
        """The buckets in which steps were seen, each with no less seconds than those before it."""
        pools: list[tuple[float, float, list[tuple[float, float]]]] = []
        """Logarithm of seconds, evidence, and of each bucket rows and its own logarithm."""
        for rows, seconds, evidence in zip(self._rows, self._seconds, self._evidence, strict=True):
            if not rows:
                continue
            log, both = math.log(seconds), evidence
            members = [(rows, log)]
            while pools and pools[-1][0] > log:
                before, theirs, smaller = pools.pop()
                log = (before * theirs + log * both) / (theirs + both)
                both += theirs
                members = smaller + members
            pools.append((log, both, members))
        return [
            Point(rows, math.exp(log), own - log)
            for log, _, members in pools
            for rows, own in members
        ]


def _bucket(rows: int) -> int:
    if rows <= EXACT:
        return rows
    return min(EXACT + math.ceil(4 * math.log2(rows / EXACT)), BUCKETS - 1)
