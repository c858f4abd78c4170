"""What a simulation of cells measures, in windows of its time."""

from __future__ import annotations

import math
import statistics
from collections import Counter

import msgspec

from penstock_planning.cells.asks import Ask
from penstock_planning.simulate.metrics import LatencyHistogram

LEAST_REQUESTS = 20
"""Requests that a tenant needs in a window to be compared with others."""


class Spread(msgspec.Struct, frozen=True):
    """Milliseconds; None where there was nothing."""

    p50: float | None
    p95: float | None


class WindowReport(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that came within `begin` to `end` seconds.

    first_token, per_token: of requests: to the first token, and between tokens on average.
    prefix_hits: share of prompt tokens that were found.  moved: requests that went on at another
    engine core.  refused: that were not answered.
    tenants: p95 of the first token of tenants with 20 requests or more: the median, and the worst;
    grown_first_token: of the tenant that grows.  fairness: Jain's index of the tenants' mean first
    tokens, 1 if all are alike.  cells: most requests of a cell, over the mean.
    """

    name: str
    begin: float
    end: float
    requests: int
    first_token: Spread
    per_token: Spread
    prefix_hits: float
    moved: int
    refused: int
    tenant_p95_median: float | None
    tenant_p95_worst: float | None
    grown_first_token: Spread
    fairness: float
    most_of_a_cell: float


class FigureWindow:
    """Figures of the requests that come between two times."""

    def __init__(self, name: str, begin: float, end: float) -> None:
        self.name, self.begin, self.end = name, begin, end
        self.first_token, self.per_token = LatencyHistogram(), LatencyHistogram()
        self.tenants: dict[str, LatencyHistogram] = {}
        self.requests = self.prompt = self.cached = self.moved = self.refused = 0
        self.by_cell: Counter[int] = Counter()

    def came(self, group: int) -> None:
        """A request of this window was placed in that cell."""
        self.by_cell[group] += 1

    def add(self, ask: Ask) -> None:
        """A request of this window has ended."""
        self.requests += 1
        self.prompt += ask.request.num_prompt
        self.cached += ask.cached
        self.moved += bool(ask.moves)
        if ask.left:
            self.refused += 1
            return
        first = ask.first - ask.arrival
        self.first_token.add(first)
        if ask.request.output_tokens > 1:
            self.per_token.add((ask.last - ask.first) / (ask.request.output_tokens - 1))
        tenant = self.tenants.get(ask.request.tenant)
        if tenant is None:
            tenant = self.tenants[ask.request.tenant] = LatencyHistogram()
        tenant.add(first)

    def report(self, grown: str, cells: int) -> WindowReport:
        """grown: the tenant that grows.  cells: how many there are."""
        others = {
            name: each
            for name, each in self.tenants.items()
            if each.count >= LEAST_REQUESTS and name != grown
        }
        p95s = [1000 * each.percentile(95) for each in others.values()]
        means = [each.mean for each in others.values()]
        placed = self.by_cell.total()
        return WindowReport(
            name=self.name,
            begin=self.begin,
            end=self.end,
            requests=self.requests,
            first_token=spread(self.first_token),
            per_token=spread(self.per_token),
            prefix_hits=self.cached / self.prompt if self.prompt else 0.0,
            moved=self.moved,
            refused=self.refused,
            tenant_p95_median=statistics.median(p95s) if p95s else None,
            tenant_p95_worst=max(p95s) if p95s else None,
            grown_first_token=spread(self.tenants.get(grown, LatencyHistogram())),
            fairness=jain(means),
            most_of_a_cell=max(self.by_cell.values(), default=0) * cells / placed if placed else 0,
        )


def spread(histogram: LatencyHistogram) -> Spread:
    """In milliseconds."""

    def of(value: float) -> float | None:
        return None if math.isnan(value) else 1000 * value

    return Spread(of(histogram.percentile(50)), of(histogram.percentile(95)))


def jain(values: list[float]) -> float:
    """Jain's index of fairness: 1 if all are alike, 1 / n if one has everything (Jain, Chiu, Hawe:
    A Quantitative Measure of Fairness, 1984)."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
