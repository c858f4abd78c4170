"""Says when a refused client should come back, by how fast requests leave the queue, and end."""

from __future__ import annotations

import heapq
from collections import deque

from penstock_engine.request.request import Request
from penstock_engine.waiting.queue import Waiting


class ServiceRate:
    """How fast requests have been leaving the queue lately, and so how long a refused one waits.

    Samples are (time, departures so far), one a second at most, over the last WINDOW seconds, and
    none from before the queue was last empty.
    """

    WINDOW = 30.0
    SHORTEST = 0.1
    LONGEST = 60.0
    UNKNOWN = 5.0

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._refused = 0

    def observe(self, now: float, queue: Waiting) -> None:
        """Takes note of the queue's departures. Cheap; call it at every step."""
        samples = self._samples
        if not queue:
            samples.clear()
            return
        if samples and now - samples[-1][0] < 1.0:
            return
        if samples and queue.departed > samples[-1][1]:
            self._refused = 0
        samples.append((now, queue.departed))
        while len(samples) > 2 and now - samples[0][0] > self.WINDOW:
            samples.popleft()

    def retry_after(self, now: float, queue: Waiting) -> float:
        """Seconds until this refused request's turn, if each one before it comes back first."""
        self._refused += 1
        seconds_each = self.seconds_each(now, queue)
        if seconds_each is None:
            return self.UNKNOWN
        return min(max(self._refused * seconds_each, self.SHORTEST), self.LONGEST)

    def seconds_each(self, now: float, queue: Waiting) -> float | None:
        """Seconds between two departures of late; None: unknown."""
        if not self._samples or queue.departed <= self._samples[0][1]:
            return None
        since, before = self._samples[0]
        return max(now - since, 0.001) / (queue.departed - before)


class OpenRequests:
    """How many requests each tenant has open, and since when."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, float]] = {}
        """How many requests each tenant has open, and the sum of the times at which they were
        accepted."""

    def count(self, tenant: str) -> int:
        return self._open.get(tenant, (0, 0.0))[0]

    def by_tenant(self) -> dict[str, int]:
        """How many each has that has any."""
        return {tenant: count for tenant, (count, _) in self._open.items()}

    def __len__(self) -> int:
        """Tenants that have any."""
        return len(self._open)

    def busiest(self, count: int) -> list[tuple[str, int]]:
        """(tenant, open requests) of the `count` that have most, these first; ties by name."""
        each = ((tenant, opened[0]) for tenant, opened in self._open.items())
        return heapq.nsmallest(count, each, key=lambda entry: (-entry[1], entry[0]))

    def opened(self, request: Request) -> None:
        """A request was accepted."""
        count, times = self._open.get(request.tenant, (0, 0.0))
        self._open[request.tenant] = (count + 1, times + request.accepted)

    def ended(self, request: Request) -> None:
        """The last of its sequences has ended."""
        count, times = self._open[request.tenant]
        if count == 1:
            del self._open[request.tenant]
        else:
            self._open[request.tenant] = (count - 1, times - request.accepted)

    def retry_after(self, tenant: str, now: float) -> float:
        """Seconds until one of them may end: what is left to each is, on average, as much as has
        gone by, and the first of them ends that much sooner."""
        count, times = self._open.get(tenant, (0, 0.0))
        if not count:
            return ServiceRate.SHORTEST
        age = now - times / count
        return min(max(age / count, ServiceRate.SHORTEST), ServiceRate.LONGEST)
