"""Finds the requests whose deadlines have passed."""

from __future__ import annotations

import heapq

from penstock_engine.request.request import Request


class Deadlines:
    """Open requests by deadline. Of one that ended otherwise a number stays in the heap until its
    time comes, or until most of the heap is such; what it brought does not."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        """(deadline, arrival)."""
        self._open: dict[int, Request] = {}
        """Open requests with a deadline, by arrival."""

    def watch(self, request: Request) -> None:
        """An accepted request; nothing happens if it has no deadline."""
        if request.deadline is None:
            return
        self._open[request.arrival] = request
        heapq.heappush(self._heap, (request.deadline, request.arrival))

    def forget(self, request: Request) -> None:
        """Forgets a request that has ended."""
        if self._open.pop(request.arrival, None) is None:
            return
        if len(self._heap) > 2 * len(self._open) + 1024:
            self._heap = [entry for entry in self._heap if entry[1] in self._open]
            heapq.heapify(self._heap)

    def next(self) -> float | None:
        """The earliest deadline, or None."""
        while self._heap and self._heap[0][1] not in self._open:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def over(self, now: float) -> list[Request]:
        """Takes out those whose time is over, earliest first."""
        over = []
        while self._heap and self._heap[0][0] <= now:
            request = self._open.pop(heapq.heappop(self._heap)[1], None)
            if request is not None:
                over.append(request)
        return over
