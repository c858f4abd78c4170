"""A core that takes times, and hands its state to another thread when that asks for it.

It stands in the loop in the core's place, and the core doesn't know of it.  What it costs a step is
four readings of the clock; a state is put together in the loop's own turn, only when one is wanted,
so nothing in the core needs a lock.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from penstock.protocol.from_worker import FromWorker, Result
from penstock_engine.core import EngineCore
from penstock_engine.metrics.figures import FigureSnapshot, snapshot
from penstock_engine.sessions.effects import Effects

FRESH = 0.2
"""Seconds for which a snapshot is reused when metrics are read more often."""


class Observed:
    """Stands in place of a core, recorded or not; whatever is not here is the core's own.

    turned: when the loop turned last, by time.monotonic.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._step = core.step
        self._worker_received = core.worker_received
        # Those of every turn; __getattr__ would look for them each time.
        self.frontend_received = core.frontend_received
        self.next_deadline = core.next_deadline
        self.turned = time.monotonic()
        self._planning = self._applying = 0.0
        self._wanted = False
        self._state: FigureSnapshot | None = None
        self._published = threading.Condition()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def worker_received(self, session: bytes, message: FromWorker, now: float) -> None:
        """The core's, which applies results here."""
        if type(message) is not Result:
            self._worker_received(session, message, now)
            return
        begun = time.perf_counter()
        self._worker_received(session, message, now)
        self._applying += time.perf_counter() - begun

    def step(self, now: float) -> Effects:
        """The core's, which plans here."""
        begun = time.perf_counter()
        effects = self._step(now)
        if effects.to_workers:
            self._planning += time.perf_counter() - begun
        self.turned = now
        if self._wanted:
            self._publish(now)
        return effects

    def _publish(self, now: float) -> None:
        state = snapshot(self._core, now, self._planning, self._applying)
        with self._published:
            self._wanted = False
            self._state = state
            self._published.notify_all()

    def snapshot(self, patience: float) -> FigureSnapshot | None:
        """The core's state of now; an older one, or none, if the loop doesn't turn for `patience`
        seconds."""
        with self._published:
            before = self._state
            if before is None or time.monotonic() - before.now > FRESH:
                self._wanted = True
                self._published.wait_for(lambda: self._state is not before, patience)
            return self._state


LIVE_AGE = 10.0
READY_AGE = 2.0
"""Seconds without a turn of the loop, beyond the longest pause that it makes by itself."""


class EngineHealth:
    """longest_wait: seconds between two turns of an idle loop."""

    def __init__(self, core: Observed, longest_wait: float) -> None:
        self._core = core
        self._longest_wait = longest_wait

    def snapshot(self) -> FigureSnapshot | None:
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
        """Returns why the core's last reported state is stale; None: it isn't."""
        return self._still(READY_AGE)

    def _still(self, most: float) -> str | None:
        age = time.monotonic() - self._core.turned
        if age <= most + self._longest_wait:
            return None
        return f"the engine core's loop has not turned for {age:.1f} s"
