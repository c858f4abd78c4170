"""Chooses the sequence that is preempted when the pool is empty."""

from __future__ import annotations

from collections.abc import Iterable

from penstock_engine.policies.order import QueueOrder
from penstock_engine.request.request import Sequence


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
