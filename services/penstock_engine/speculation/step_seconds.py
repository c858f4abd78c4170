"""What a step takes by its rows, with drafts and without, from steps of about the same time."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from statistics import median
from typing import NamedTuple

EXACT = 16
"""Up to so many rows each number of them has an entry of its own; above, quarters of a power of
two."""

BUCKETS = 64

UNKNOWN = 0.25
"""The largest variance of the logarithm of what a size takes: half or so either way."""

GUESSED, FLAT = 0.3, 0.25
"""The standard error of what steps of a size take that none had, as a share of how much longer they
are thought to take than the nearest that was seen; and the least that they may take longer, as a
power of the rows."""

TOLL = 0.01
"""The standard error of what a way to plan steps costs beyond their rows, as such a share."""

DRIFT = 1e-5
"""Growth of a variance with each step, as machines change."""

LEAST_NOISE, FIRST_NOISE = 0.02, 0.1
"""Noise of a step, as a share of it: the least that is assumed, and at first."""

NOISE_RATE = 0.05
"""The share by which the noise that is assumed moves with each step, towards the median of those
seen."""

ODD = 2.0
"""In standard deviations: a difference that is so large counts half, and larger ones for less and
less: the step, or the one before it, was held up by something else."""

DOUBT = 1.5
"""How many times as large variances are after such a difference: if more of them follow, it is what
was thought to be known that is wrong."""

LATELY = 5
"""Number of steps whose median is the machine's present pace."""

GOING_ON, ALONE, DRAFTED = range(3)
"""Ways to plan: several steps at once, one without drafts, one with drafts."""


class TimedStep(NamedTuple):
    """A step without prefill. alone: it was planned by itself, and not with others at once."""

    decodes: int
    drafted: int
    alone: bool = True

    @property
    def rows(self) -> int:
        return self.decodes + self.drafted


class Slower(NamedTuple):
    """The logarithm of how many times as long a step takes with drafts as without, the standard
    error of that, and its part that is not what steps without drafts take."""

    log: float
    error: float
    own: float


class Point(NamedTuple):
    """A point of the curve: the logarithm of what steps of so many rows take, and its variance."""

    rows: float
    log: float
    variance: float


class Learnt:
    """Numbers that are known with a variance each, which grows with time up to `most`."""

    __slots__ = ("_most", "_noted", "_variances", "values")

    def __init__(self, number: int, most: float) -> None:
        self.values = [0.0] * number
        self._most = most
        self._variances = [most] * number
        self._noted = [0] * number

    def variance(self, at: int, now: int) -> float:
        """now: number of steps so far."""
        return min(self._most, self._variances[at] + DRIFT * (now - self._noted[at]))

    def learn(self, at: int, change: float, variance: float, now: int) -> None:
        self.values[at] += change
        self._variances[at], self._noted[at] = min(self._most, variance), now


Parts = list[tuple[Learnt, int]]
"""The places of the numbers whose sum says what a step takes."""


class StepSeconds:
    """A curve through the steps that were seen, and what it costs beyond their rows to plan them
    one by one, or with drafts. The curve needn't be straight: where weights are read for many rows
    as fast as for one, further ones cost nothing up to some number of them.

    A machine may be busy with something else for a while, and steps then take several times as
    long, whatever their size. So nothing is learnt from how long a step takes, but from how much
    longer than the one before it; and a difference that noise can't explain counts for little. Each
    difference is shared out by what is known least (a Kalman filter without covariances). All are
    of logarithms.

    No step takes less time than a smaller one. Where that is what was seen, both are given the mean
    of the two, in which counts most what is known best. This is the pool-adjacent-violators
    algorithm (Ayer et al., 1955).
    """

    __slots__ = (
        "_before",
        "_curve",
        "_noise",
        "_now",
        "_pace",
        "_rows",
        "_sizes",
        "_slower",
        "_tolls",
        "_way",
        "largest",
    )

    def __init__(self) -> None:
        self.largest = 0  # rows of the largest step that was seen
        self._now = 0
        self._rows = [0.0] * BUCKETS  # mean of each bucket; 0: no step was seen
        self._sizes = Learnt(BUCKETS, UNKNOWN)
        self._tolls = [Learnt(BUCKETS, TOLL) for _ in (GOING_ON, ALONE, DRAFTED)]
        """Logarithms of each kind's factors, by the number of decodes; those of GOING_ON are 0."""
        self._noise = FIRST_NOISE
        self._pace: deque[float] = deque(maxlen=LATELY)
        """How much longer the latest steps took than the curve says."""
        self._before: tuple[TimedStep, float, Parts] | None = None
        """The latest step, the logarithm of its seconds, and its parts."""
        self._way = ALONE
        """How steps are planned while nothing is drafted."""
        self._curve: list[Point] | None = None
        """What the buckets say, in order; None: not since the last step."""
        self._slower: dict[tuple[int, int, float], Slower] = {}
        """What `slower` has returned since the last step."""

    def observe(self, step: TimedStep, seconds: float, each: float) -> None:
        """A step took so many seconds; 0: unknown, and not counted. each: see `slower`."""
        if seconds <= 0.0 or step.decodes < 1:
            return
        log = math.log(seconds)
        self._now += 1
        self._begin(step, log, each)
        if not step.drafted:
            drafted = self._before is not None and self._before[0].drafted
            if not (step.alone and drafted):
                self._way = ALONE if step.alone else GOING_ON
        parts = self._parts(step)
        if self._before is not None:
            self._compare(parts, log - self._before[1], self._before[2])
        self._before = step, log, parts
        self._pace.append(log - _sum(parts))
        self._curve = None
        self._slower.clear()

    def _begin(self, step: TimedStep, log: float, each: float) -> None:
        at = _bucket(step.rows)
        if not self._rows[at]:
            curve = self._points()
            found = self._between(step.rows, each) if curve else Point(step.rows, log, UNKNOWN)
            self._sizes.learn(at, found.log, found.variance, self._now)
            self._rows[at] = step.rows
        self._rows[at] += 0.05 * (step.rows - self._rows[at])
        self.largest = max(self.largest, step.rows)

    def _compare(self, parts: Parts, longer: float, before: Parts) -> None:
        """A step of these parts took so much longer than the one before."""
        longer -= _sum(parts) - _sum(before)
        sides = [(known, at, 1.0) for known, at in parts]
        for known, at in before:
            if (known, at, 1.0) in sides:
                sides.remove((known, at, 1.0))
            else:
                sides.append((known, at, -1.0))
        now, noise = self._now, 1.48 * self._noise
        variances = [known.variance(at, now) for known, at, _ in sides]
        whole = sum(variances) + noise * noise
        if sides:
            odd = longer * longer / (ODD * ODD * whole)
            weight = 1.0 / (1.0 + odd)
            for (known, at, sign), variance in zip(sides, variances, strict=True):
                share = weight * variance / whole
                left = variance * (1.0 - share) if odd < 1.0 else DOUBT * variance
                known.learn(at, sign * longer * share, left, now)
        if not sides or sum(variances) < noise * noise:
            up = abs(longer) > self._noise
            self._noise *= 1.0 + NOISE_RATE if up else 1.0 / (1.0 + NOISE_RATE)
            self._noise = max(LEAST_NOISE, self._noise)

    def _parts(self, step: TimedStep) -> Parts:
        parts = [(self._sizes, _bucket(step.rows))]
        way = _way(step)
        if way != GOING_ON:
            parts.append((self._tolls[way], _bucket(step.decodes)))
        return parts

    def of(self, decodes: int, each: float = 0.0) -> float:
        """Seconds of a step of so many decodes without drafts, at the present pace; 0.0: no step
        was seen. each: see `slower`."""
        if not self._pace or decodes < 1:
            return 0.0
        log = self._between(decodes, each).log + self._tolls[self._way].values[_bucket(decodes)]
        return math.exp(log + median(self._pace))

    def slower(self, decodes: int, drafts: int, each: float) -> Slower:
        """How much longer a step takes with so many drafts. each: seconds of a further row where
        only smaller or only larger steps were seen."""
        key = decodes, drafts, each
        found = self._slower.get(key)
        if found is None:
            found = self._slower[key] = self._compared(decodes, drafts, each)
        return found

    def _compared(self, decodes: int, drafts: int, each: float) -> Slower:
        if not self._pace or not drafts:
            return Slower(0.0, 0.0, 0.0)
        many, few = self._between(decodes + drafts, each), self._between(decodes, each)
        at, now = _bucket(decodes), self._now
        toll, way = self._tolls[DRAFTED], self._tolls[self._way]
        log = many.log - few.log + toll.values[at] - way.values[at]
        variance = toll.variance(at, now) + (
            0.0 if self._way == GOING_ON else way.variance(at, now)
        )
        if many != few:
            variance += many.variance + few.variance
        return Slower(max(0.0, log), math.sqrt(variance), math.sqrt(many.variance))

    def _between(self, rows: int, each: float) -> Point:
        curve = self._points()
        each *= math.exp(-median(self._pace)) if self._pace else 1.0
        above = bisect_left(curve, (rows,))
        if above == len(curve):
            last = curve[-1]
            longer = math.log1p(each * (rows - last.rows) * math.exp(-last.log))
            return _guessed(rows, last, longer)
        high = curve[above]
        if high.rows == rows:
            return high
        if not above:
            share = max(1.0 - each * (high.rows - rows) * math.exp(-high.log), rows / high.rows)
            return _guessed(rows, high, math.log(share))
        low = curve[above - 1]
        share = (rows - low.rows) / (high.rows - low.rows)
        log = low.log + math.log1p(share * math.expm1(high.log - low.log))
        hidden = GUESSED * (high.log - low.log)
        return Point(rows, log, max(low.variance, high.variance) + hidden * hidden)

    def _points(self) -> list[Point]:
        if self._curve is None:
            self._curve = self._pooled()
        return self._curve

    def _pooled(self) -> list[Point]:
        """The buckets in which steps were seen, each with no less than those before it."""
        pools: list[tuple[float, float, list[float]]] = []
        """Logarithm, evidence, and rows of each bucket."""
        for at, rows in enumerate(self._rows):
            if not rows:
                continue
            log, evidence = self._sizes.values[at], 1.0 / self._sizes.variance(at, self._now)
            members = [rows]
            while pools and pools[-1][0] > log:
                before, theirs, smaller = pools.pop()
                log = (before * theirs + log * evidence) / (theirs + evidence)
                evidence += theirs
                members = smaller + members
            pools.append((log, evidence, members))
        return [
            Point(rows, log, 1.0 / evidence) for log, evidence, members in pools for rows in members
        ]


def _guessed(rows: int, near: Point, longer: float) -> Point:
    """What steps take that are larger or smaller than any that was seen. longer: than those, as is
    thought; 0.0: it isn't known what a row takes, and it may be all that they do."""
    whole = abs(math.log(rows / near.rows))
    error = GUESSED * max(abs(longer), FLAT * whole) if longer else 0.5 * whole
    return Point(rows, near.log + longer, min(UNKNOWN, near.variance + error * error))


def _sum(parts: Parts) -> float:
    return sum([known.values[at] for known, at in parts])


def _way(step: TimedStep) -> int:
    if step.drafted:
        return DRAFTED
    return ALONE if step.alone else GOING_ON


def _bucket(rows: int) -> int:
    if rows <= EXACT:
        return rows
    return min(EXACT + math.ceil(4 * math.log2(rows / EXACT)), BUCKETS - 1)
