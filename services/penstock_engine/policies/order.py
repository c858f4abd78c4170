"""The order in which waiting sequences are served."""

from __future__ import annotations

from typing import Protocol

from penstock_engine.request.request import Sequence


class QueueOrder(Protocol):
    """The lower key is served first. A sequence's key never changes while it lives."""

    def key(self, sequence: Sequence) -> tuple[int, ...]: ...


class PriorityWithAgeing:
    """The lower priority value first; of equal ones, by arrival, then by index in the request. A
    preempted sequence keeps its place.

    Everyone who waits ages alike, so ageing needs no clock and changes no key: a request stands
    where its priority puts it, moved back by its arrival.  One that is `p` levels better may
    overtake only if fewer than `p * ARRIVALS_PER_LEVEL` requests came in between.  So each request
    is overtaken by a bounded number of later ones, whatever they ask for.
    """

    ARRIVALS_PER_LEVEL = 64

    def key(self, sequence: Sequence) -> tuple[int, ...]:
        request = sequence.request
        aged = request.priority * self.ARRIVALS_PER_LEVEL + request.arrival
        return (aged, request.arrival, sequence.index)
