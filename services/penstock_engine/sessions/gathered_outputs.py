"""Tokens of requests that nobody reads as they come: they go out several at a time.

Each message wakes a front end, which on a small machine takes a processor from the worker's
threads in the middle of a step. What is held here is lost with the engine core, and computed
again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from penstock.protocol.to_frontend import (
    SequenceOutput,
)

MOST_HELD = 32
"""Tokens of a sequence that are held, at most: whatever brings more sends all that is held."""


class GatheredOutputs:
    """Outputs for one front end that are held, to be sent together.

    A sequence's first output since its request entered a step is not held: it tells the front end
    that the request is not what kills engine cores. Nor is anything held of one that is in no step.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], list[SequenceOutput]] = {}
        """Held outputs by request and sequence; empty for one whose next output may be held."""

    def take(self, output: SequenceOutput) -> list[SequenceOutput]:
        """Returns the outputs that are to be sent now that `output` has come."""
        key = output.request, output.sequence
        if output.finish is not None:
            return [*_joined(self._held.pop(key, [])), output]
        held = self._held.get(key)
        if held is None or not output.tokens or output.prompt_logprobs is not None:
            self._held[key] = []
            return [*_joined(held or []), output]
        held.append(output)
        tokens = sum(len(output.tokens) for output in held)
        return self._all() if tokens > MOST_HELD else []

    def release(self, request: int, sequences: list[int]) -> list[SequenceOutput]:
        """Returns the outputs that were held back of a request's sequences, which have entered a
        step, or left."""
        return [out for index in sequences for out in _joined(self._held.pop((request, index), []))]

    def _all(self) -> list[SequenceOutput]:
        """Everybody's: otherwise sequences that began at different times would take turns, and the
        front end would be woken as often as before."""
        outputs = [output for held in self._held.values() for output in _joined(held)]
        for key in self._held:
            self._held[key] = []
        return outputs

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Request and sequence, of all that are known here."""
        return iter(self._held)


def _joined(held: list[SequenceOutput]) -> list[SequenceOutput]:
    """Outputs of one sequence as one, where they are tokens and nothing else."""
    if len(held) < 2 or any(out.logprobs is not None or out.drafted for out in held):
        return held
    tokens = [token for out in held for token in out.tokens]
    return [SequenceOutput(held[0].request, held[0].sequence, tokens)]


class MayEnd(Protocol):
    """What may have a deadline. arrival: a number of its own."""

    arrival: int
    deadline: float | None


AnyTimed = TypeVar("AnyTimed", bound=MayEnd)


class Deadlines(Generic[AnyTimed]):
    """Open requests by deadline. Of one that ended otherwise a number stays in the heap until its
    time comes, or until most of the heap is such; what it brought does not."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        """(deadline, arrival)."""
        self._open: dict[int, AnyTimed] = {}
        """Open requests with a deadline, by arrival."""

    def watch(self, request: AnyTimed) -> None:
        """An accepted request; nothing happens if it has no deadline."""
        if request.deadline is None:
            return
        self._open[request.arrival] = request
        heapq.heappush(self._heap, (request.deadline, request.arrival))

    def forget(self, request: AnyTimed) -> None:
        """Forgets a request that has ended."""
        if self._open.pop(request.arrival, None) is None:
            return
        if len(self._heap) > 2 * len(self._open) + 1024:
            self._heap = [entry for entry in self._heap if self._stands(entry)]
            heapq.heapify(self._heap)

    def next(self) -> float | None:
        """The earliest deadline, or None."""
        while self._heap and not self._stands(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def next_time(self) -> float:
        """The earliest deadline; infinity for none."""
        due = self.next()
        return math.inf if due is None else due

    def over(self, now: float) -> list[AnyTimed]:
        """Takes out those whose time is over, earliest first."""
        over = []
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._stands(entry):
                over.append(self._open.pop(entry[1]))
        return over

    def _stands(self, entry: tuple[float, int]) -> bool:
        """Whether the entry is still a request's deadline: the request hasn't ended, and no later
        reader has brought another deadline."""
        request = self._open.get(entry[1])
        return request is not None and request.deadline == entry[0]
