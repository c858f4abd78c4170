"""The requests of a trial, as far as they have to be simulated to judge it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from penstock_planning.plan.objective import LatencyBound
from penstock_planning.plan.work import TrialWork
from penstock_planning.simulate.metrics import RESOLUTION, LatencyHistogram
from penstock_planning.simulate.simulation import Simulation
from penstock_planning.simulate.trace import TraceRequest

LOOK = 16
"""Arrivals between two looks at how the simulation is doing."""

Ended = Literal["", "late", "work"]


class Arrivals:
    """Gives a simulation its requests, until enough is known. Those that are open then are
    answered, so figures are of all requests that came.

    counts: how many values of each figure the whole traffic has at most; empty: that isn't known.
    work: that the simulation takes; when it is more than most_work, no more come, if the first
    `least` have.
    ended: why requests are missing: `late`, as more of them are late than the objective allows,
    whatever comes after; `work`, as so much was simulated; empty: none is missing.
    """

    def __init__(
        self,
        bounds: Sequence[LatencyBound],
        counts: Mapping[str, int],
        work: TrialWork,
        most_work: float | None,
        least: int = 1,
    ) -> None:
        self._bounds = [bound for bound in bounds if bound.figure in counts]
        self._counts = counts
        self._work = work
        self._most_work = math.inf if most_work is None else most_work
        self._least = least
        self.ended: Ended = ""
        self._open = array("L")  # requests that were under way as each arrived

    @property
    def growth(self) -> float:
        """How many times as many requests were under way in the last quarter of the arrivals as in
        the second: about 1 where they are answered as fast as they come, 7/3 where a constant share
        is left over. The first quarter is the way to a steady state."""
        quarter = len(self._open) // 4
        if not quarter:
            return 1.0
        return sum(self._open[-quarter:]) / max(sum(self._open[quarter : 2 * quarter]), 1)

    def of(
        self, simulation: Simulation, requests: Iterable[TraceRequest]
    ) -> Iterator[TraceRequest]:
        """The requests that are to come."""
        for number, request in enumerate(requests):
            if number and number % LOOK == 0 and self._is_lost(simulation, request.at):
                self.ended = "late"
                return
            if number >= self._least and self._work.done >= self._most_work:
                self.ended = "work"
                return
            self._work.arrived(request)
            self._open.append(simulation.num_open)
            yield request

    def _is_lost(self, simulation: Simulation, now: float) -> bool:
        return any(self._is_broken(bound, simulation, now) for bound in self._bounds)

    def _is_broken(self, bound: LatencyBound, simulation: Simulation, now: float) -> bool:
        """Whether so many values are beyond the bound that the percentile of all of them is."""
        count = self._counts[bound.figure]
        histogram: LatencyHistogram = getattr(simulation.metrics, bound.figure)
        late = histogram.above(bound.seconds)
        if bound.figure != "itl":
            late += simulation.metrics.rejected + _waiting(bound, simulation, now)
        return late > count - math.ceil(count * bound.percent / 100)


def _waiting(bound: LatencyBound, simulation: Simulation, now: float) -> int:
    """Open requests that will be late, as they have waited for so long already."""
    first = bound.figure == "ttft"
    return sum(
        now - request.arrival > bound.seconds * (1 + RESOLUTION) and not (first and request.tokens)
        for replica in simulation.replicas
        for request in replica.requests.values()
    )
