"""The sequences that wait for a slot, in the order of a policy."""

from __future__ import annotations

import heapq

from penstock_engine.policies.order import QueueOrder
from penstock_engine.request import Sequence


class WaitingQueue:
    """A heap with counts.

    A sequence that leaves from the middle (an abort) only gives up its ticket; its stale entry is
    skipped at the head, and the heap is rebuilt when most of it is stale.

    num_sequences, num_requests, num_tokens (prompt and emitted ids): what waits now.
    departed: requests that have left so far, for the estimate of the service rate.
    """

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._heap: list[tuple[tuple[int, ...], int, Sequence]] = []
        self._last_ticket = 0
        self.num_sequences = 0
        self.num_requests = 0
        self.num_tokens = 0
        self.departed = 0

    def __bool__(self) -> bool:
        return self.num_sequences > 0

    def push(self, sequence: Sequence) -> None:
        """Adds a sequence; a preempted one goes back to the place that its order gives it."""
        self._last_ticket += 1
        sequence.ticket = self._last_ticket
        heapq.heappush(self._heap, (self._order.key(sequence), sequence.ticket, sequence))
        self.num_sequences += 1
        self.num_tokens += sequence.num_tokens
        sequence.request.num_queued += 1
        if sequence.request.num_queued == 1:
            self.num_requests += 1

    def head(self) -> Sequence | None:
        """Who is next, or None."""
        heap = self._heap
        while heap:
            _, ticket, sequence = heap[0]
            if sequence.ticket == ticket:
                return sequence
            heapq.heappop(heap)
        return None

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it stands. It must be in the queue."""
        if not sequence.ticket:
            raise ValueError(f"sequence {sequence.index} of {sequence.request.name} isn't queued")
        sequence.ticket = 0
        self.num_sequences -= 1
        self.num_tokens -= sequence.num_tokens
        sequence.request.num_queued -= 1
        if sequence.request.num_queued == 0:
            self.num_requests -= 1
            self.departed += 1
        if len(self._heap) > 2 * self.num_sequences + 64:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)

    def sequences(self) -> list[Sequence]:
        """All that wait, in order. Sorts: not for every step."""
        return [entry[2] for entry in sorted(self._heap) if entry[2].ticket == entry[1]]
