"""Steps that the main thread has started and not reported yet.

The next step is started before the result of the current one has been collected, so that the
device's queue never runs empty. Two steps in flight are enough for that; a third plan waits in the
inbox.
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
from penstock_worker.engine_session import Heard
from penstock_worker.left_over import Activity

DEPTH = 2
"""Steps in flight at most."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.0001, 0.002
"""Limits of the pause between two checks of whether a step is done, in seconds."""
PAUSES = 16
"""A pause is the time waited so far, divided by this number, so that a result is late by at most
that much. A plan that arrives ends the pause."""

Tell = Callable[[int, Plan, Result], None]
"""Called with a session's number, a plan, and its result."""


class PendingStep(Protocol):
    """A step that a runner has started."""

    def done(self) -> bool:
        """Returns whether `result` would return or raise without waiting for the device."""

    def result(self) -> Result:
        """Waits for the step and returns its result. Raises StepLost."""


class Begins(Protocol):
    """The part of StepRunner that starts steps."""

    def begin(self, plan: Plan, disturbed: Callable[[], bool]) -> PendingStep: ...


class Session(Protocol):
    """The part of CoreSession that is needed here."""

    inbox: queue.SimpleQueue[Heard]
    activity: Activity


@dataclass(frozen=True)
class _Begun:
    session: int
    plan: Plan
    pending: PendingStep


class StepsInFlight:
    """Starts steps and collects their results in order. Keeps the session's activity up to date
    with the step that the device is computing."""

    def __init__(self, session: Session, tell: Tell) -> None:
        """`tell` is called with each result, in the order of the plans."""
        self._session = session
        self._tell = tell
        self._begun: deque[_Begun] = deque()
        self._left: _Begun | None = None
        """The last one that was forgotten: a device may still be at it."""

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def session(self) -> int:
        """Session of the oldest step. There must be one."""
        return self._begun[0].session

    def hear(self) -> Heard | None:
        """Waits for the next message and returns it. Returns None if the oldest step is to be
        collected first."""
        inbox = self._session.inbox
        begun = time.monotonic()
        while self._begun:
            if self._begun[0].pending.done():
                return None
            waited = time.monotonic() - begun
            pause = min(max(waited / PAUSES, SHORTEST_PAUSE), LONGEST_PAUSE)
            try:
                # With DEPTH steps queued, nothing more can be queued until the oldest ends.
                return inbox.get(block=not self._full, timeout=pause)
            except queue.Empty:
                if self._full:
                    return None
        return inbox.get()

    def begin(self, session: int, plan: Plan, runner: Begins) -> None:
        """Starts the step as soon as there is room for it, and collects what is done. Raises what
        the runner raises."""
        while self._full:
            self.collect()
        if not self._begun:
            self._session.activity.session = session
            self._session.activity.step = plan.step
        self._begun.append(_Begun(session, plan, runner.begin(plan, self._disturbed)))
        while self._begun and self._begun[0].pending.done():
            self.collect()

    def collect(self) -> None:
        """Waits for the oldest step and reports it. Raises what the runner raises."""
        oldest = self._begun[0]
        result = oldest.pending.result()
        self._begun.popleft()
        self._session.activity.step = self._begun[0].plan.step if self._begun else None
        self._tell(oldest.session, oldest.plan, result)

    def clear(self) -> None:
        """Drops all steps; their results aren't needed any more."""
        if self._begun:
            self._left = self._begun[-1]
        self._begun.clear()
        self._session.activity.step = None

    def await_forgotten(self, seconds: float) -> int | None:
        """Waits until the device is done with what was forgotten. Returns the step that it is still
        at after so many seconds; None: it is done."""
        until = time.monotonic() + seconds
        while self._left is not None and not self._left.pending.done():
            if time.monotonic() > until:
                return self._left.plan.step
            time.sleep(LONGEST_PAUSE)
        self._left = None
        return None

    def _disturbed(self) -> bool:
        """Returns whether a message waits until the step that is being computed ends."""
        return not self._session.inbox.empty()

    @property
    def _full(self) -> bool:
        return len(self._begun) >= DEPTH
