"""The sequences that wait for a slot, in the order of a policy."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from typing import NamedTuple

from penstock_engine.policies.order import QueueOrder
from penstock_engine.request.request import Sequence


class Ahead(NamedTuple):
    """Requests, and tokens of all their sequences."""

    requests: int
    tokens: int


class Part(NamedTuple):
    """What of all that waits is one tenant's. tokens: of its sequences, prompt and emitted."""

    requests: int
    sequences: int
    tokens: int


class Waiting(ABC):
    """What every queue keeps count of.

    num_sequences, num_requests, num_tokens (prompt and emitted ids), num_predicted (ids of
    predictions): what waits now.
    departed: requests that have left so far, for the estimate of the service rate.
    """

    def __init__(self) -> None:
        self._last_ticket = 0
        self.num_sequences = 0
        self.num_requests = 0
        self.num_tokens = 0
        self.num_predicted = 0
        self.departed = 0

    def __bool__(self) -> bool:
        return self.num_sequences > 0

    def push(self, sequence: Sequence) -> None:
        """Adds a sequence; a preempted one goes back to the place that its order gives it."""
        self._last_ticket += 1
        sequence.ticket = self._last_ticket
        self.num_sequences += 1
        self.num_tokens += sequence.num_tokens
        sequence.request.num_queued += 1
        if sequence.request.num_queued == 1:
            self.num_requests += 1
            self.num_predicted += len(sequence.request.prediction)
        self._enter(sequence)

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
            self.num_predicted -= len(sequence.request.prediction)
            self.departed += 1
        self._leave(sequence)

    @abstractmethod
    def head(self, tenant: str | None = None) -> Sequence | None:
        """The sequence that is served next; None if none waits. tenant: only among this tenant's
        sequences, in a queue that keeps tenants apart."""

    @abstractmethod
    def sequences(self) -> list[Sequence]:
        """All that wait, in order. Sorts: not for every step."""

    @abstractmethod
    def first(self, count: int) -> list[Sequence]:
        """The first `count` of `sequences()`, at a cost that hangs on `count` alone."""

    @abstractmethod
    def ahead(self, tenant: str, priority: int) -> Ahead:
        """Returns what is served before a new request, without regard to ageing."""

    def part_of(self, tenant: str) -> Part | None:
        """A tenant's part; None: tenants are not kept apart."""
        return None

    @abstractmethod
    def _enter(self, sequence: Sequence) -> None:
        """Puts a sequence with a fresh ticket into the order."""

    @abstractmethod
    def _leave(self, sequence: Sequence) -> None:
        """The sequence has given up its ticket."""

    @abstractmethod
    def hold(self, head: Sequence) -> None:
        """The head found no room."""


class Line:
    """A heap of sequences.

    A sequence that leaves from the middle (an abort) only gives up its ticket; its stale entry is
    skipped at the head, and the heap is rebuilt when most of it is stale.
    """

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._heap: list[tuple[tuple[int, ...], int, Sequence]] = []

    def push(self, sequence: Sequence) -> None:
        """Enters a sequence at its place, under its present ticket."""
        heapq.heappush(self._heap, (self._order.key(sequence), sequence.ticket, sequence))

    def head(self) -> Sequence | None:
        """The sequence that is served next; None if none waits."""
        heap = self._heap
        while heap:
            _, ticket, sequence = heap[0]
            if sequence.ticket == ticket:
                return sequence
            heapq.heappop(heap)
        return None

    def tidy(self, num_live: int) -> None:
        """Call it after one has left; `num_live` remain."""
        if len(self._heap) > 2 * num_live + 64:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)

    def first(self, count: int) -> list[Sequence]:
        """The first `count`, in order: the heap is walked from its root, best first."""
        heap = self._heap
        found: list[Sequence] = []
        frontier = [(*heap[0][:2], 0)] if heap else []
        while frontier and len(found) < count:
            _, ticket, at = heapq.heappop(frontier)
            if heap[at][2].ticket == ticket:
                found.append(heap[at][2])
            for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heapq.heappush(frontier, (*heap[child][:2], child))
        return found

    def sequences(self) -> list[Sequence]:
        """All waiting sequences, in order."""
        return [entry[2] for entry in sorted(self._heap) if entry[2].ticket == entry[1]]


class WaitingQueue(Waiting):
    """A waiting queue that is served strictly in order."""

    def __init__(self, order: QueueOrder) -> None:
        super().__init__()
        self._line = Line(order)
        self._by_priority: dict[int, list[int]] = {}
        """(sequences, tokens) that wait, by priority."""

    def head(self, tenant: str | None = None) -> Sequence | None:
        return self._line.head()

    def sequences(self) -> list[Sequence]:
        return self._line.sequences()

    def first(self, count: int) -> list[Sequence]:
        return self._line.first(count)

    def hold(self, head: Sequence) -> None:
        """Does nothing: in a strict order the head stays the head, and nothing passes it."""

    def ahead(self, tenant: str, priority: int) -> Ahead:
        counts = [c for level, c in self._by_priority.items() if level <= priority]
        sequences = sum(count[0] for count in counts)
        return Ahead(min(sequences, self.num_requests), sum(count[1] for count in counts))

    def _enter(self, sequence: Sequence) -> None:
        self._line.push(sequence)
        self._count(sequence, 1)

    def _leave(self, sequence: Sequence) -> None:
        self._line.tidy(self.num_sequences)
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, sign: int) -> None:
        counts = self._by_priority.setdefault(sequence.request.priority, [0, 0])
        counts[0] += sign
        counts[1] += sign * sequence.num_tokens
        if not counts[0]:
            del self._by_priority[sequence.request.priority]
