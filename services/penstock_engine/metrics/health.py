"""Whether the engine core is alive, and whether it is ready, seen from beside its loop."""

from __future__ import annotations

import time

from penstock_engine.metrics.observed import Observed
from penstock_engine.metrics.snapshot import MetricsSnapshot

LIVE_AGE = 10.0
READY_AGE = 2.0
"""Seconds without a turn of the loop, beyond the longest pause that it makes by itself."""


class EngineHealth:
    """longest_wait: seconds between two turns of an idle loop."""

    def __init__(self, core: Observed, longest_wait: float) -> None:
        self._core = core
        self._longest_wait = longest_wait

    def snapshot(self) -> MetricsSnapshot | None:
        """The core's, for which a loop that turns is waited for."""
        return self._core.snapshot(self._longest_wait + READY_AGE / 2)

    def dead(self) -> str | None:
        """Why the process is as good as dead; None: it lives."""
        return self._still(LIVE_AGE)

    def unready(self) -> str | None:
        """Why requests would not be served now; None: they would."""
        stuck = self.stuck()
        state = None if stuck else self.snapshot()
        if state is None:
            return stuck or "the engine core is starting"
        if state.draining:
            return "the engine core is draining"
        return state.unready or None

    def stuck(self) -> str | None:
        """Why whatever the core last said of itself means nothing any more."""
        return self._still(READY_AGE)

    def _still(self, most: float) -> str | None:
        age = time.monotonic() - self._core.turned
        if age <= most + self._longest_wait:
            return None
        return f"the engine core's loop has not turned for {age:.1f} s"
