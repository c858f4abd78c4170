"""Puts an idle model to sleep, which frees its memory, and wakes it for the next request."""

from __future__ import annotations

import math

from penstock.config.scheduler_settings import SchedulerSettings
from penstock.process import logs
from penstock.protocol.common import SleepLevel
from penstock_engine.core_state import CoreState
from penstock_engine.parts import HasDeadline, Restless

log = logs.get(__name__)


class IdleSleep(HasDeadline, Restless):
    """Puts the model to sleep after so many minutes without work, and wakes it when there is some.
    A model that was put to sleep by hand is woken by hand."""

    def __init__(self, settings: SchedulerSettings, state: CoreState) -> None:
        self._seconds = 60 * settings.idle_sleep_minutes
        self._level: SleepLevel = 2 if settings.idle_sleep_level == 2 else 1
        self._state = state
        self._since = 0.0
        """The last time at which there was work or the model wasn't loaded."""

    def advance(self, now: float) -> None:
        """Has the model sleep if it has been idle for long enough. Called each turn, after what
        brings and ends requests."""
        sleep = self._state.sleep
        if self._state.workers.ready is not None:
            sleep.roused()
        if self._has_work():
            self._since = now
            if sleep.rouse(now):
                log.info("wakes up", by="a request")
        elif self._stays():
            self._since = now
        elif now - self._since >= self._seconds:
            log.info("going to sleep", by="itself", level=self._level)
            sleep.doze(self._level)

    @property
    def is_restless(self) -> bool:
        """Always: it watches for how long there was no work."""
        return True

    def next_deadline(self) -> float:
        """The time at which the model would fall asleep; infinity for never."""
        if self._has_work() or self._stays():
            return math.inf
        return self._since + self._seconds

    def _has_work(self) -> bool:
        calls = self._state.calls
        open_ones = next(self._state.frontends.requests(), None)
        return open_ones is not None or calls.running or calls.num_calls > 0

    def _stays(self) -> bool:
        """Whether it is to stay as it is without work: it isn't loaded, an operator has a hand in
        it, or KV is kept for conversations."""
        state = self._state
        return (
            state.workers.ready is None
            or state.plans_nothing
            or state.draining
            or state.kv_sessions.num_live > 0
        )
