"""What a session with an engine core goes by: whom it tells of what, the state that the engine core
last reported, whether it makes progress, and how fast requests are submitted to it, which is no
faster than it answers."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from penstock.client.placement import Computing, OpenRequest
from penstock.errors import RequestFailed
from penstock.protocol.common import SleepLevel, WakeTag
from penstock.protocol.to_frontend import Status, Welcome

STATUS_MAX_AGE = 2.0
"""Seconds after which an engine core's last Status counts as out of date: four heartbeats."""

AWAY_PATIENCE = 60.0
"""Seconds for which an engine core that doesn't answer is expected to come back."""

DEFAULT_BLOCK_SIZE = 16
"""Tokens of a KV block where the engine has not said yet."""


class ReportedState:
    """The last Welcome and Status of an engine core, and what follows from them.

    welcome: the last that came, also of a session that has ended.  status, computing: of the
    present session.  former: the last fingerprint that was reported, also in a session that has
    ended. refused: why no request is sent to an engine core that answers; empty if requests are
    sent.
    """

    def __init__(self) -> None:
        self.welcome: Welcome | None = None
        self.status: Status | None = None
        self.computing: Computing | None = None
        self.former: str | None = None
        self.refused = ""
        self._answered = False
        self._status_at = 0.0
        self._begun = time.monotonic()
        """Time at which it was first dialled, or its last session ended."""

    @property
    def fingerprint(self) -> str | None:
        """Returns the fingerprint it computes with; None: it hasn't reported it yet."""
        return None if self.computing is None else self.computing.fingerprint

    def may_tell(self, now: float) -> bool:
        """Whether its fingerprint isn't known yet, but may soon be."""
        waited_for = self._answered or now - self._begun < AWAY_PATIENCE
        return self.fingerprint is None and not self.refused and waited_for

    @property
    def connected(self) -> bool:
        """Whether requests can be sent: it has answered, and serves our model."""
        return self._answered and not self.refused

    @property
    def answered(self) -> bool:
        """Whether there is a session, also with an engine core of another model."""
        return self._answered

    @property
    def fresh(self) -> bool:
        """Whether its last Status is recent enough to count."""
        return self.status_age(time.monotonic()) <= STATUS_MAX_AGE

    @property
    def ready(self) -> bool:
        """Whether it takes and computes requests now."""
        status = self.status
        return (
            self.connected
            and status is not None
            and status.ready
            and not status.draining
            and self.fresh
        )

    @property
    def paused(self) -> bool:
        """Whether it is paused until a resume request."""
        return self.status is not None and self.status.paused

    @property
    def sleeping(self) -> SleepLevel:
        """The level at which its model sleeps, or is about to; 0: it doesn't."""
        return 0 if self.status is None else self.status.sleeping

    @property
    def waking(self) -> tuple[WakeTag, ...]:
        """Tags that WakeUp has named since the model fell asleep, which don't suffice to wake
        it."""
        return () if self.status is None else self.status.waking

    @property
    def asleep(self) -> bool:
        """Whether its workers have given back the memory that this level names."""
        return self.status is not None and self.status.asleep

    @property
    def missing_workers(self) -> tuple[int, ...]:
        """Ranks that have no worker."""
        return () if self.status is None else self.status.missing

    @property
    def prefills_from(self) -> int:
        """Least tokens of the prompts that this engine core computes for others to go on with; 0 if
        it computes none for others."""
        return 0 if self.welcome is None else self.welcome.prefills_from

    @property
    def expects(self) -> bool:
        """Whether it fetches a prompt's KV blocks while another one computes them."""
        return self.welcome is not None and self.welcome.expects

    @property
    def draining(self) -> bool:
        return self.status is not None and self.status.draining

    @property
    def hands_over(self) -> bool:
        """Whether it is about to leave, and its requests should go on elsewhere now."""
        return self.status is not None and self.status.hands_over

    @property
    def keeps_up(self) -> bool:
        """Whether it said last that no sequence waits there."""
        return self.status is not None and not self.status.waiting

    @property
    def block_size(self) -> int:
        return DEFAULT_BLOCK_SIZE if self.status is None else self.status.block_size

    def status_age(self, now: float) -> float:
        """Seconds since its last Status; infinity if there was none."""
        return now - self._status_at if self.status is not None else float("inf")


MAX_UNANSWERED = 256
"""Requests that have been submitted and neither accepted nor rejected, at most."""

MAX_UNANSWERED_TOKENS = 1_000_000
"""Tokens of these requests, prompt and emitted, at most; one request may always be on its way."""

MAX_TURN = 64
MAX_TURN_TOKENS = 65_536
"""Most tokens that are submitted in one turn of the event loop, some milliseconds of encoding; one
request always is."""

TRIES_IN_COMPANY = 3
"""Sessions that may end on a request which they had not answered, before it is sent alone."""

TRIES_ALONE = 3
"""Sessions that may end on a request that was alone, before it fails."""

ALONE_AFTER = 64
"""Others that go before one which has to be alone, where there are others."""

Line = OrderedDict[int, OpenRequest]


class Pacing:
    """Lines of requests in front of a session's window.

    An engine core can get thousands of requests at once when another dies, or when it comes back
    itself.  All at once they would fill the pipe, or keep it from its heartbeats, and end the
    session: for ever, as they would all be resubmitted.  So the number of unanswered requests is
    limited, and the rest wait in two queues, new requests and resubmitted ones, which take turns.

    A request whose Submit no session has lived to answer may be the cause of the crashes: after
    TRIES_IN_COMPANY it is sent only when nothing else is unanswered, and nothing is sent with it.

    submit: sends a request's Submit; False where the session has ended: its owner then takes all
    away (`clear`).
    """

    def __init__(self, submit: Callable[[OpenRequest], bool]) -> None:
        self._submit = submit
        self._new: Line = OrderedDict()
        self._again: Line = OrderedDict()
        self._alone: Line = OrderedDict()
        self._timed: dict[int, OpenRequest] = {}
        """Requests in line that have a deadline."""
        self._unanswered: dict[int, int] = {}
        """Tokens, by number; whether a request is among them that has to be alone: _alone_out."""
        self._tokens = 0
        self._last: Line = self._again
        self._since_alone = 0
        self._alone_out = False
        self._turn = self._turn_tokens = 0
        self._turn_over_due = False

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._new) + len(self._again) + len(self._alone)

    @property
    def unanswered(self) -> list[int]:
        """Numbers of what was submitted and not answered."""
        return list(self._unanswered)

    def waits(self, number: int) -> bool:
        """Whether it hasn't been sent to the engine core yet."""
        return number in self._new or number in self._again or number in self._alone

    def enter(self, request: OpenRequest, *, new: bool) -> None:
        """Puts a request in line, to be submitted as soon as there is room. new: whether it is for
        the first time."""
        line = self._new if new else self._again
        if request.placement.tries >= TRIES_IN_COMPANY:
            line = self._alone
        line[request.key] = request
        if request.terms.deadline is not None:
            self._timed[request.key] = request
        self._go()

    def answered(self, number: int) -> bool:
        """The engine core has spoken of it; whether that is the first word. Numbers that it never
        got are ignored."""
        tokens = self._unanswered.pop(number, None)
        if tokens is None:
            return False
        self._tokens -= tokens
        self._alone_out = False
        self._go()
        return True

    def forget(self, number: int) -> None:
        """Forgets a request that is over. If it was submitted, it keeps its place in the window
        until the engine core has dealt with it."""
        self._take_out(number)

    def clear(self) -> None:
        """The session has ended: nothing is in line or on its way any more."""
        for line in (self._new, self._again, self._alone, self._timed, self._unanswered):
            line.clear()
        self._tokens = 0
        self._alone_out = False

    def expire(self, now: float) -> None:
        """Ends what has waited in line beyond its deadline."""
        for request in list(self._timed.values()):
            if request.terms.time_left_ms(now) == 0:
                request.expire()

    def _take_out(self, number: int) -> None:
        for line in (self._new, self._again, self._alone, self._timed):
            line.pop(number, None)

    def _go(self) -> None:
        """Submits what may go now; what this turn has no time for goes in the next."""
        while self._turn < MAX_TURN and self._turn_tokens < MAX_TURN_TOKENS:
            line = self._next_line()
            if line is None:
                return
            number, request = next(iter(line.items()))
            tokens = request.carried_tokens
            if not self._fits(tokens) or not self._submit(request):
                return
            self._take_out(number)
            self._sent(number, tokens, line)

    def _next_line(self) -> Line | None:
        """The line whose first request is sent next; None if none may be sent now."""
        if self._alone_out:
            return None
        if self._alone and (self._since_alone >= ALONE_AFTER or not (self._new or self._again)):
            return None if self._unanswered else self._alone
        if self._new and self._again:
            return self._again if self._last is self._new else self._new
        return self._new or self._again or None

    def _fits(self, tokens: int) -> bool:
        if not self._unanswered:
            return True
        full = len(self._unanswered) >= MAX_UNANSWERED
        return not full and self._tokens + tokens <= MAX_UNANSWERED_TOKENS

    def _sent(self, number: int, tokens: int, line: Line) -> None:
        self._unanswered[number] = tokens
        self._tokens += tokens
        alone = line is self._alone
        self._alone_out = alone
        self._since_alone = 0 if alone else self._since_alone + 1
        if not alone:
            self._last = line
        self._turn += 1
        self._turn_tokens += tokens
        if not self._turn_over_due:
            self._turn_over_due = True
            asyncio.get_running_loop().call_soon(self._turn_over)

    def _turn_over(self) -> None:
        self._turn_over_due = False
        self._turn = self._turn_tokens = 0
        self._go()


def count_tries(requests: Iterable[OpenRequest]) -> None:
    """Counts a try for requests whose session ended before their Submits were answered. Ends those
    that have had enough."""
    for request in requests:
        placement = request.placement
        placement.tries += 1
        if placement.tries >= TRIES_IN_COMPANY + TRIES_ALONE and not request.finished:
            request.fail(
                RequestFailed(
                    f"the session with the engine core ended {placement.tries} times in a row"
                    f" before this request was accepted, the last {TRIES_ALONE} times while no"
                    " other request was on its way"
                )
            )


class EngineProgress:
    """Notices an engine core whose process lives but whose loop is stuck.

    Heartbeats say only that the process lives.  Status and Welcome come from the engine core's
    loop; a Status is due with each heartbeat.

    limit: seconds without either of them after which the engine core counts as stuck.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._heard_at = 0.0

    def heard(self, now: float) -> None:
        """Notes that a message has come that only the engine core's loop sends."""
        self._heard_at = now

    def not_heard(self, seconds: float, now: float) -> None:
        """Notes that this process did not read messages for so many seconds. If these are many, the
        limit starts again: what the engine core sent may still be unread."""
        if seconds > self._limit / 2:
            self._heard_at = now

    def stuck(self, now: float) -> str:
        """Why the session is to be ended; empty if the engine core makes progress."""
        if now - self._heard_at <= self._limit:
            return ""
        return f"the engine core is alive but sent no status for {self._limit:g} s"
