"""The status that all front ends get of this engine core, whether or not they have requests
here."""

from __future__ import annotations

from penstock.protocol.to_frontend import Status
from penstock_engine.core_state import CoreState
from penstock_engine.parts import HasDeadline

PACE = 0.9
"""Beat intervals between one Status and the next: a Status is a sign of life too, and with one
before each beat is due no beat goes out."""


class StatusReport(HasDeadline):
    """Says when a Status is due, and fills it: at least every beat interval, and at once when
    readiness changes, or when the model comes to a standstill."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._parts = state.reporting_parts()
        self._due = 0.0
        self._last_health: tuple[object, ...] | None = None
        self._last: Status | None = None

    def next_deadline(self) -> float:
        """The time at which the next Status is due, even if nothing changes."""
        return self._due

    def hasten(self, now: float) -> None:
        """Makes one due at once: there is news."""
        self._due = now

    def take(self, now: float, *, newcomers: bool) -> tuple[Status | None, bool]:
        """Returns the status if one is due, or there are sessions that have had none; and whether
        it is due to all. As long as nothing changes it is the same object."""
        state = self._state
        healthy, reason = state.health(now)
        paused = state.paused and state.stands_still
        health = (healthy, reason, paused, state.sleep.level, state.sleep.waking, state.asleep)
        due = now >= self._due or health != self._last_health
        if not due and not newcomers:
            return None, False
        if due:
            self._last_health = health
            self._due = now + PACE * state.facts.config.transport.beat_interval
        status = self._filled(healthy=healthy, reason=reason, paused=paused)
        if status != self._last:
            self._last = status
        return self._last, due

    def _filled(self, *, healthy: bool, reason: str, paused: bool) -> Status:
        """Returns what the parts report, and what follows from several of them."""
        state = self._state
        reported = {name: value for part in self._parts for name, value in part.status().items()}
        return Status(
            ready=healthy,
            reason=reason,
            weights=None if state.workers.ready is None else state.facts.model.digest,
            waiting=state.num_waiting,
            prefix_caching=state.facts.config.cache.enable_prefix_caching,
            paused=paused,
            asleep=state.asleep,
            **reported,
        )
