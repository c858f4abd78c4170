"""The sessions of front ends: the open requests of each, and what is sent to it next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.protocol.to_frontend import (
    Accepted,
    Adapters,
    Called,
    NeedMedia,
    Outputs,
    Pooled,
    Prepared,
    Rejected,
    SequenceOutput,
    Status,
    Unchanged,
    Welcome,
)
from penstock_engine.parts import HasDeadline, ReportsStatus
from penstock_engine.request.reader import Reader
from penstock_engine.request.request import Request
from penstock_engine.sessions.effects import Effects, Frames
from penstock_engine.sessions.gathered_outputs import Deadlines, GatheredOutputs
from penstock_engine.sessions.output_messages import is_large, messages
from penstock_engine.waiting.queue_bounds import OpenRequests

Reply = Welcome | Accepted | Rejected | Prepared | Pooled | NeedMedia | Adapters | Called

MAX_FRONTENDS = 1024
"""Sessions at once; one more is refused."""

UNCHANGED = Unchanged()

NOBODY = b""
"""The session of requests that have lost their front end and wait for another."""


class FrontendSession:
    """The session of one front end: its open requests, and the messages for its next flush."""

    __slots__ = (
        "entered",
        "gathered",
        "knows_unchanged",
        "large",
        "left",
        "name",
        "outputs",
        "readers",
        "replies",
        "requests",
        "session",
        "told",
    )

    def __init__(self, session: bytes, name: str) -> None:
        self.session = session
        self.name = name
        self.knows_unchanged = False  # whether it may be sent Unchanged
        self.told: Status | None = None  # the last that it was sent
        self.requests: dict[int, Request] = {}
        """Open ones, by the front end's number."""
        self.readers: dict[int, Reader] = {}
        """Open requests whose answer others get too, by the same numbers; none is in both."""
        self.replies: list[tuple[Reply, Frames]] = []
        self.outputs: list[SequenceOutput] = []
        self.large = False  # some of the outputs may have many values
        self.gathered = GatheredOutputs()
        # Requests of which the first sequence has got a slot, and the last has lost it.
        self.entered: list[int] = []
        self.left: list[int] = []

    def reply(self, message: Reply, frames: Frames = ()) -> None:
        """Answers come before the outputs of the same flush: Accepted precedes what it promises."""
        self.replies.append((message, frames))

    def give(self, request: Request, output: SequenceOutput) -> None:
        """What a sequence gained: sent at the next flush, or later if the request is gathered."""
        if request.kept is not None:
            request.kept.note(output)
        self.deliver(output, gathered=request.gathered)

    def catch_up(self, outputs: list[SequenceOutput]) -> None:
        """Sends what there is of an answer already, which may be much."""
        self.outputs += outputs
        self.large = True

    def deliver(self, output: SequenceOutput, *, gathered: bool) -> None:
        """Sends an output at the next flush, or later if it may be gathered with others."""
        self.large = self.large or is_large(output)
        if gathered:
            self.outputs += self.gathered.take(output)
        else:
            self.outputs.append(output)

    def moved(self, request: Request) -> None:
        """The request's first sequence has got a slot, or its last has lost it."""
        held = list(request.sequences) if request.gathered else []
        self.tell_moved(request.number, runs=bool(request.num_running), held=held)

    def tell_moved(self, number: int, *, runs: bool, held: list[int]) -> None:
        """Some of a request is in a slot from here on, or none of it. held: its sequences whose
        outputs are gathered."""
        (self.entered if runs else self.left).append(number)
        if held:
            self.outputs += self.gathered.release(number, held)

    def take_over(self, request: Request, number: int) -> None:
        """A request that was another session's is this one's from here on, under that number."""
        request.session, request.number = self.session, number
        self.requests[number] = request
        if request.reported_running:
            self.entered.append(number)

    def release(self, request: Request) -> None:
        """A request is another session's from here on. Its outputs are kept there."""
        del self.requests[request.number]
        self.gathered.release(request.number, list(request.sequences))


class Orphanage(FrontendSession):
    """Stands in for the front end of requests that have lost theirs: outputs are kept, and nothing
    is sent."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        super().__init__(NOBODY, "nobody")
        self._numbers = 0

    def take_in(self, request: Request) -> None:
        """A request whose front end is gone."""
        self._numbers += 1
        request.session, request.number = NOBODY, self._numbers
        self.requests[request.number] = request

    def reply(self, message: Reply, frames: Frames = ()) -> None:
        """Does nothing: the front end that adopts the request is sent everything."""

    def give(self, request: Request, output: SequenceOutput) -> None:
        if request.kept is not None:
            request.kept.note(output)

    def moved(self, request: Request) -> None:
        """Does nothing: the front end that adopts the request is sent everything."""


class Frontends(HasDeadline, ReportsStatus):
    """All sessions of front ends, oldest first."""

    def __init__(self) -> None:
        self.open_requests = OpenRequests()  # of all sessions, counted by tenant
        self.deadlines: Deadlines[Request] = Deadlines()  # of these requests
        self.orphanage = Orphanage()  # requests without a reader at the moment
        self.shared: FrontendSession | None = None  # what stands in for those of several readers
        self.has_newcomers = False  # whether some session was sent no Status yet
        self._sessions: dict[bytes, FrontendSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FrontendSession]:
        return iter(self._sessions.values())

    def get(self, session: bytes) -> FrontendSession | None:
        """A session, or what stands in for that of NOBODY, or for several; None: it has ended."""
        found = self._sessions.get(session) if session else self.orphanage
        if found is None and self.shared is not None and session == self.shared.session:
            return self.shared
        return found

    def open(self, session: bytes, name: str) -> FrontendSession:
        opened = self._sessions[session] = FrontendSession(session, name)
        self.has_newcomers = True
        return opened

    def close(self, session: bytes) -> None:
        """Forgets a session; its requests have been ended."""
        del self._sessions[session]

    def opened(self, request: Request) -> None:
        """A request was accepted."""
        self.open_requests.opened(request)
        self.deadlines.watch(request)

    def ended(self, request: Request) -> None:
        """The last of it has ended. Of one with several readers, each of these is counted."""
        if not request.readers:
            self.open_requests.ended(request)
        self.deadlines.forget(request)

    def next_deadline(self) -> float:
        """The earliest deadline of an open request; infinity if none has one."""
        return self.deadlines.next_time()

    def status(self) -> dict[str, Any]:
        """Returns the status of the sessions for front ends: fields of Status."""
        return {"frontends": len(self)}

    def moved(self, requests: list[Request]) -> None:
        """Requests whose first sequence has got a slot, or whose last has lost it."""
        for request in requests:
            session = self.get(request.session)
            if session is not None and not request.ended:
                session.moved(request)

    def requests(self) -> Iterator[Request]:
        """Every open request. Don't end any while iterating."""
        yield from self.awaited()
        yield from self.orphanage.requests.values()

    def awaited(self) -> Iterator[Request]:
        """Every open request that a front end waits for. Don't end any while iterating."""
        for session in self._sessions.values():
            yield from session.requests.values()
        if self.shared is not None:
            yield from self.shared.requests.values()

    def flush(self, effects: Effects, status: Status | None, *, due: bool) -> None:
        """Moves what each session is due into `effects`, in the order in which it must arrive.

        status: the same object as before if nothing has changed.  due: whether it goes to all front
        ends, and not only to those that have had none yet.
        """
        send = effects.to_frontends.append
        for session in self._sessions.values():
            if session.replies:
                for message, frames in session.replies:
                    send((session.session, message, frames))
                session.replies = []
            if session.outputs or session.entered or session.left:
                entered, left = session.entered, session.left
                for part in messages(session.outputs, large=session.large):
                    send((session.session, Outputs(part, entered, left), ()))
                    entered, left = [], []
                session.outputs, session.entered, session.left = [], [], []
                session.large = False
            if status is not None and (due or session.told is None):
                same = session.told is status and session.knows_unchanged
                send((session.session, UNCHANGED if same else status, ()))
                session.told = status
        self.has_newcomers = self.has_newcomers and status is None
