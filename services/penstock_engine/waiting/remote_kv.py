"""Sequences whose prefix is on its way, with its KV: from the tier on disk, or from elsewhere.

They wait for it a bounded time. Whatever becomes of it, they run: what has not come is computed.
"""

from __future__ import annotations

import heapq
from itertools import islice

from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import SequenceState


class RemoteKV:
    """limit: sequences that may wait so; one more runs at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Sequence, float] = {}
        self._heap: list[tuple[float, int, int, Sequence]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def park(self, sequence: Sequence, until: float) -> bool:
        """A new sequence waits until then at the latest. Returns whether there was room for it."""
        if len(self._waiting) >= self._limit:
            return False
        sequence.move(SequenceState.WAITING_FOR_REMOTE_KV)
        self._waiting[sequence] = until
        entry = (until, sequence.request.arrival, sequence.index, sequence)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if entry[3] in self._waiting]
            heapq.heapify(self._heap)
        return True

    def unpark(self, sequence: Sequence) -> None:
        """Takes a sequence out of those that wait: it may run, or it has ended."""
        del self._waiting[sequence]

    def arrived(self, request: Request) -> list[Sequence]:
        """Takes out a request's sequences, which are WAITING then."""
        return [self._let_go(sequence) for sequence in self.waiting(request)]

    def waiting(self, request: Request) -> list[Sequence]:
        """A request's sequences that wait so."""
        return [each for each in request.sequences.values() if each in self._waiting]

    def awaits(self, request: Request) -> bool:
        """Whether one of its sequences waits so."""
        return any(sequence in self._waiting for sequence in request.sequences.values())

    def over(self, now: float) -> list[Sequence]:
        """Takes out those whose time is over, earliest first; they are WAITING then."""
        free = []
        while self._heap and self._heap[0][0] <= now:
            sequence = heapq.heappop(self._heap)[3]
            if sequence in self._waiting:
                free.append(self._let_go(sequence))
        return free

    def next_deadline(self) -> float:
        """The time at which the next sequence stops waiting; infinity if none waits."""
        while self._heap and self._heap[0][3] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def parked(self) -> list[Sequence]:
        return list(self._waiting)

    def first_parked(self, count: int) -> list[Sequence]:
        """The first `count` of them."""
        return list(islice(self._waiting, count))

    def _let_go(self, sequence: Sequence) -> Sequence:
        self.unpark(sequence)
        sequence.move(SequenceState.WAITING)
        return sequence
