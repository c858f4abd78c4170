"""Steps that the main thread has begun and not told of yet.

The next step is begun before the one that the device is at has been collected, so that the device
always finds work in its queue.  Two are enough for that; a third plan waits in the inbox.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_worker.engine_session import Activity, Heard

DEPTH = 2
SHORTEST_PAUSE, LONGEST_PAUSE = 0.0001, 0.002
PAUSES = 16
"""Seconds between looks at a step while the plan of the next one may come at any time: this part of
the time that was waited already, so that a result is never late by more.  A plan ends the pause."""

Tell = Callable[[int, Plan, Result], None]
"""Of which session; the plan, and what came of it."""


class PendingStep(Protocol):
    """A step that a runner has begun."""

    def done(self) -> bool:
        """Whether `result` would return, or raise, without waiting for the device."""

    def result(self) -> Result:
        """Waits for it. Raises StepLost."""


class Begins(Protocol):
    """A StepRunner."""

    def begin(self, plan: Plan) -> PendingStep: ...


class Session(Protocol):
    """What is needed of CoreSession."""

    inbox: queue.SimpleQueue[Heard]
    activity: Activity


@dataclass(frozen=True)
class _Begun:
    session: int
    plan: Plan
    pending: PendingStep


class StepsInFlight:
    """tell: called with each step that was computed, in order. Says in the session's activity which
    step the device is at."""

    def __init__(self, session: Session, tell: Tell) -> None:
        self._session = session
        self._tell = tell
        self._begun: deque[_Begun] = deque()

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def session(self) -> int:
        """Whose the oldest is; there is one."""
        return self._begun[0].session

    def hear(self) -> Heard | None:
        """The next message, waiting for it; None: the oldest step is to be collected first."""
        inbox = self._session.inbox
        begun = time.monotonic()
        while self._begun:
            if self._begun[0].pending.done():
                return None
            waited = time.monotonic() - begun
            pause = min(max(waited / PAUSES, SHORTEST_PAUSE), LONGEST_PAUSE)
            try:
                # With its queue full, there is nothing to do for the device until a step ends.
                return inbox.get(block=not self._full, timeout=pause)
            except queue.Empty:
                if self._full:
                    return None
        return inbox.get()

    def begin(self, session: int, plan: Plan, runner: Begins) -> None:
        """Begins it, once there is room, and collects what is done. Raises what the runner does."""
        while self._full:
            self.collect()
        if not self._begun:
            self._session.activity.session = session
            self._session.activity.step = plan.step
        self._begun.append(_Begun(session, plan, runner.begin(plan)))
        while self._begun and self._begun[0].pending.done():
            self.collect()

    def collect(self) -> None:
        """Waits for the oldest step and tells of it. Raises what the runner does."""
        oldest = self._begun[0]
        result = oldest.pending.result()
        self._begun.popleft()
        self._session.activity.step = self._begun[0].plan.step if self._begun else None
        self._tell(oldest.session, oldest.plan, result)

    def clear(self) -> None:
        """Nobody wants their results any more."""
        self._begun.clear()
        self._session.activity.step = None

    @property
    def _full(self) -> bool:
        return len(self._begun) >= DEPTH
