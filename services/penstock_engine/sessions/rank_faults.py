"""When a group of ranks ends after one has failed."""

from __future__ import annotations

FAULT_PATIENCE = 1.0
"""Seconds from the first fault on.  A rank that failed reports it before it disconnects, so only
the transfer time lies between two faults; one that was killed reports nothing at all."""


class RankFaults:
    """Ranks fail together: when one is gone the others notice, and what they report may arrive
    before its own reason does.  The reason matters: running out of memory is no sequence's fault.
    So the first fault doesn't end the group: it ends when every rank has spoken, or after
    FAULT_PATIENCE.
    """

    def __init__(self, size: int) -> None:
        self.until: float | None = None  # when the group ends at the latest; None: none has failed
        self.own = False  # one has failed by itself, and not for want of another
        self._size = size
        self._ranks: list[int] = []

    def add(self, rank: int, now: float, *, own: bool) -> bool:
        """One has failed. Whether all have now."""
        self.own = self.own or own
        if self.until is None:
            self.until = now + FAULT_PATIENCE
        if rank not in self._ranks:
            self._ranks.append(rank)
        return len(self._ranks) == self._size

    def has(self, rank: int) -> bool:
        return rank in self._ranks

    def due(self, now: float) -> bool:
        """Whether FAULT_PATIENCE is over."""
        return self.until is not None and now >= self.until

    def clear(self) -> None:
        """A group begins anew."""
        self.until = None
        self.own = False
        self._ranks.clear()
