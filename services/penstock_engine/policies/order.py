"""The order in which waiting sequences are served, and running ones are preempted."""

from __future__ import annotations

from collections.abc import Iterable
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


class LatestFirst:
    """The sequence that is last in the order, and only if it comes after `needy`.

    So the first in the order is never a victim, and can take everybody else's blocks: it always
    finishes.  The last in the order waits in place with the blocks it has until somebody before
    it needs them, which costs less than computing it again.
    """

    def __init__(self, order: QueueOrder) -> None:
        self._order = order

    def victim(self, running: Iterable[Sequence], needy: Sequence) -> Sequence | None:
        last = max(running, key=self._order.key, default=None)
        if last is None or self._order.key(last) <= self._order.key(needy):
            return None
        return last
