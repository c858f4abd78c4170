"""How an engine core drains: open requests end here, or go on at another one with their KV."""

from __future__ import annotations

import math
from typing import Any

from penstock.config.cache_settings import CacheSettings
from penstock_engine.parts import HasDeadline, ReportsStatus, Restless

KEPT_SECONDS = 5.0
"""Seconds for which others can fetch the KV of requests that were handed over, before the engine
core leaves."""


class Drain(HasDeadline, ReportsStatus, Restless):
    """began: when it was asked to leave; None: it wasn't.  hands_over: front ends are to resubmit
    their open requests elsewhere."""

    def __init__(self, cache: CacheSettings) -> None:
        # Without an endpoint no KV could be fetched: what goes on elsewhere is computed again.
        self._patience = cache.kv_handover_seconds if cache.kv_endpoint else math.inf
        self.began: float | None = None
        self.hands_over = False
        self._kept_until = -math.inf

    def begin(self, now: float) -> None:
        """Begins to drain. Again: it had begun before."""
        if self.began is None:
            self.began = now

    def advance(self, now: float, *, has_open: bool) -> bool:
        """Returns whether the hand-over begins now, as open requests have had their time."""
        if self.hands_over or not has_open or now < self._hands_over_at:
            return False
        self.hands_over = True
        return True

    def taken_away(self, now: float) -> None:
        """A request goes on elsewhere."""
        self._kept_until = now + KEPT_SECONDS

    def may_leave(self, now: float, *, has_open: bool) -> bool:
        """Whether nothing is left to do for anybody."""
        return self.began is not None and not has_open and now >= self._kept_until

    def status(self) -> dict[str, Any]:
        """Returns the status of the drain for front ends: fields of Status."""
        return {"draining": self.began is not None, "hands_over": self.hands_over}

    @property
    def is_restless(self) -> bool:
        """Whether it has begun."""
        return self.began is not None

    def next_deadline(self) -> float:
        """The time at which open requests are handed over; infinity once they are."""
        return math.inf if self.hands_over else self._hands_over_at

    @property
    def _hands_over_at(self) -> float:
        return math.inf if self.began is None else self.began + self._patience
