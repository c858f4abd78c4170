"""Who is served first."""

from __future__ import annotations

from typing import Protocol

from penstock_engine.request import Sequence


class QueueOrder(Protocol):
    """The lower key is served first. A sequence's key never changes while it lives."""

    def key(self, sequence: Sequence) -> tuple[int, ...]: ...


class FirstComeFirstServed:
    """By arrival, then by index in the request. A preempted sequence keeps its place."""

    def key(self, sequence: Sequence) -> tuple[int, ...]:
        return (sequence.request.arrival, sequence.index)
