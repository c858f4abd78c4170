"""The requests of a trial, as far as they have to be simulated to judge it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from penstock_engine.plan.objective import LatencyBound
from penstock_engine.simulate.metrics import RESOLUTION, LatencyHistogram
from penstock_engine.simulate.simulation import Simulation
from penstock_engine.simulate.trace import TraceRequest

LOOK = 16
"""Arrivals between two looks at how the simulation is doing."""

Ended = Literal["", "late", "steps"]


class Arrivals:
    """Gives a simulation its requests, until enough is known. Those that are open then are
    answered, so figures are of all requests that came.

    counts: how many values of each figure the whole traffic has at most; empty: that isn't known.
    most_steps: that are simulated before the last arrival.
    ended: why requests are missing: `late`, as more of them are late than the objective allows,
    whatever comes after; `steps`, as so many were simulated; empty: none is missing.
    """

    def __init__(
        self,
        bounds: Sequence[LatencyBound],
        counts: Mapping[str, int],
        most_steps: int | None,
    ) -> None:
        self._bounds = [bound for bound in bounds if bound.figure in counts]
        self._counts = counts
        self._most_steps = most_steps
        self.ended: Ended = ""

    def of(
        self, simulation: Simulation, requests: Iterable[TraceRequest]
    ) -> Iterator[TraceRequest]:
        """The requests that are to come."""
        for number, request in enumerate(requests):
            if number and number % LOOK == 0:
                self.ended = self._look(simulation, request.at)
                if self.ended:
                    return
            yield request

    def _look(self, simulation: Simulation, now: float) -> Ended:
        if any(self._is_broken(bound, simulation, now) for bound in self._bounds):
            return "late"
        steps = sum(replica.tally.steps for replica in simulation.replicas)
        return "steps" if self._most_steps is not None and steps >= self._most_steps else ""

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
