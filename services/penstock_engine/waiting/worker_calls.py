"""Calls of worker extensions: one at a time, on all ranks, while no step is in flight."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from penstock.protocol.common import CallCode
from penstock.protocol.from_frontend import CallWorkers
from penstock.protocol.from_worker import CallDone, CallFailed
from penstock.protocol.to_frontend import Called
from penstock.protocol.to_worker import WorkerCall
from penstock_engine.kv.pool import BrokenState
from penstock_engine.parts import HasDeadline, Restless, ServesFrontends
from penstock_engine.scheduler.state import SchedulerState
from penstock_engine.sessions.frontends import Frontends
from penstock_engine.sessions.workers import Workers

MOST_WAITING = 64
"""Calls that wait at a time; one more is refused."""
MOST_WAITING_BYTES = 128 * 2**20
"""Most bytes of all their arguments together."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """session: of the front end.  until: when it must have begun."""

    session: bytes
    message: CallWorkers
    until: float


class WorkerCalls(HasDeadline, Restless, ServesFrontends):
    """Between two calls there is a turn for steps, so that calls that come one after another don't
    starve requests.  A rank that doesn't return ends its own process; the group is lost then, and
    the call with it."""

    def __init__(
        self,
        scheduling: SchedulerState,
        workers: Workers,
        frontends: Frontends,
        result_bytes: int,
    ) -> None:
        """result_bytes: that a method may return."""
        self._result_bytes = result_bytes
        self._scheduling = scheduling
        self._workers = workers
        self._frontends = frontends
        self._waiting: deque[WaitingCall] = deque()
        self._running: WaitingCall | None = None
        self.running = False
        """Whether ranks are at work on one."""
        self._unanswered: set[int] = set()
        """Ranks that the running call is asked of, and that haven't answered."""
        self._number = 0
        self._resting = False
        """Whether one has ended, and steps have their turn before the next one."""

    @property
    def num_calls(self) -> int:
        """Number of calls that wait."""
        return len(self._waiting)

    def holds_steps(self) -> bool:
        """Whether no step may be planned: one runs, or is to begin once no step is in flight."""
        if self.running or not self._waiting:
            return self.running
        return self._workers.ready is not None and not self._resting

    def add(self, session: bytes, message: CallWorkers, now: float) -> None:
        """Takes a front end's call; the front end gets each rank's result."""
        size = len(message.arguments) + sum(len(one.message.arguments) for one in self._waiting)
        call = WaitingCall(session, message, now + message.seconds)
        if len(self._waiting) >= MOST_WAITING or size > MOST_WAITING_BYTES:
            self._refuse(call, "unavailable", "too many calls are already waiting for the workers")
        else:
            self._waiting.append(call)

    def advance(self, now: float) -> None:
        """Ends those whose time is over; begins the next one where it can be. To be called before
        steps are planned, and `planned` after that."""
        if not self._waiting:
            return
        for call in [one for one in self._waiting if one.until <= now]:
            self._waiting.remove(call)
            seconds = call.message.seconds
            self._refuse(call, "timed_out", f"it could not begin within {seconds:g} s")
        if self.running or not self.holds_steps() or self._scheduling.in_flight:
            return
        call = self._running = self._waiting.popleft()
        self.running = True
        self._number += 1
        self._unanswered = set(range(self._workers.ranks.size))
        message = call.message
        self._workers.send(
            WorkerCall(
                self._number,
                message.method,
                message.arguments,
                message.seconds,
                self._result_bytes,
            )
        )

    def planned(self) -> None:
        """Steps have had their turn."""
        self._resting = False

    @property
    def is_restless(self) -> bool:
        """Whether a call runs, or waits for steps in flight."""
        return self.running or bool(self._waiting) or self._resting

    def next_deadline(self) -> float:
        """The time at which `advance` must be called, even if no message comes."""
        if not self._waiting or self._workers.failing:
            return math.inf  # Nothing is called on a group that has failed.
        if self.holds_steps() and not self.running and not self._scheduling.in_flight:
            return 0.0  # Steps had their turn, and none could be planned.
        return min((call.until for call in self._waiting), default=math.inf)

    def answered(self, rank: int, answer: CallDone | CallFailed) -> bool:
        """Notes a rank's answer. False: that rank wasn't asked."""
        if self._running is None or answer.call != self._number or rank not in self._unanswered:
            return False
        self._unanswered.remove(rank)
        if isinstance(answer, CallDone):
            self._tell(self._running, rank, result=answer.result)
        else:
            self._tell(self._running, rank, code=answer.code, error=answer.error)
        if not self._unanswered:
            self._end()
        return True

    def worker_lost(self, reason: str) -> None:
        """The group is over. What waits does so for the next one."""
        if self._running is None:
            return
        for rank in sorted(self._unanswered):
            self._tell(
                self._running,
                rank,
                code="unavailable",
                error=f"the worker was lost in the call: {reason}",
            )
        self._end()

    def frontend_ended(self, session: bytes) -> None:
        """Notes that a front end is gone. Its calls run on, and their results are dropped."""
        self._waiting = deque(one for one in self._waiting if one.session != session)

    def check(self) -> None:
        """Raises BrokenState where a call runs during a step, or of no rank."""
        if self.running and self._scheduling.in_flight:
            raise BrokenState("a call to the workers runs during a step")
        if self.running != bool(self._unanswered):
            asked = sorted(self._unanswered)
            raise BrokenState(f"ranks {asked} are asked, but a call runs: {self.running}")

    def _end(self) -> None:
        self._running = None
        self.running = False
        self._unanswered = set()
        self._resting = True

    def _refuse(self, call: WaitingCall, code: CallCode, error: str) -> None:
        for rank in range(self._workers.ranks.size):
            self._tell(call, rank, code=code, error=error)

    def _tell(
        self,
        call: WaitingCall,
        rank: int,
        *,
        result: bytes = b"",
        code: CallCode = "",
        error: str = "",
    ) -> None:
        frontend = self._frontends.get(call.session)
        if frontend is not None:
            ranks = self._workers.ranks.size
            frontend.reply(Called(call.message.call, rank, ranks, result, code, error))
