"""Whose time is over."""

from __future__ import annotations

import heapq

from penstock_engine.request import Request


class Deadlines:
    """Open requests by deadline. One that ended otherwise is skipped when its time comes, or
    dropped when most of the heap is such."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._limit = 1024

    def watch(self, request: Request) -> None:
        """An accepted request; nothing happens if it has no deadline."""
        if request.deadline is None:
            return
        heapq.heappush(self._heap, (request.deadline, request.arrival, request))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if entry[2].open]
            heapq.heapify(self._heap)
            self._limit = 2 * len(self._heap) + 1024

    def next(self) -> float | None:
        """The earliest deadline, or None."""
        while self._heap and not self._heap[0][2].open:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def over(self, now: float) -> list[Request]:
        """Takes out those whose time is over, earliest first."""
        over = []
        while self._heap and self._heap[0][0] <= now:
            request = heapq.heappop(self._heap)[2]
            if request.open:
                over.append(request)
        return over
