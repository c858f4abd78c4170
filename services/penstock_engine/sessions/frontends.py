"""The sessions of front ends: who has which requests open, and what goes to each next."""

from __future__ import annotations

from collections.abc import Iterator

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
    Welcome,
)
from penstock_engine.request.request import Request
from penstock_engine.sessions.effects import Effects, Frames
from penstock_engine.sessions.gathered_outputs import GatheredOutputs
from penstock_engine.waiting.deadlines import Deadlines
from penstock_engine.waiting.service_rate import OpenRequests

Reply = Welcome | Accepted | Rejected | Prepared | Pooled | NeedMedia | Adapters | Called

MAX_FRONTENDS = 1024
"""Sessions at once; one more is refused."""

MAX_OUTPUTS = 4096
"""Outputs in one message: a step gives at most max_num_seqs, a mass failure may give more."""


class FrontendSession:
    """One front end: its open requests, and what it is to be sent at the next flush."""

    __slots__ = (
        "entered",
        "gathered",
        "left",
        "name",
        "outputs",
        "replies",
        "requests",
        "session",
    )

    def __init__(self, session: bytes, name: str) -> None:
        self.session = session
        self.name = name
        self.requests: dict[int, Request] = {}
        """Open ones, by the front end's number."""
        self.replies: list[tuple[Reply, Frames]] = []
        self.outputs: list[SequenceOutput] = []
        self.gathered = GatheredOutputs()
        # Requests of which the first sequence has got a slot, and the last has lost it.
        self.entered: list[int] = []
        self.left: list[int] = []

    def reply(self, message: Reply, frames: Frames = ()) -> None:
        """Answers come before the outputs of the same flush: Accepted precedes what it promises."""
        self.replies.append((message, frames))

    def give(self, request: Request, output: SequenceOutput) -> None:
        """What a sequence gained: sent at the next flush, or later if the request is gathered."""
        if request.gathered:
            self.outputs += self.gathered.take(output)
        else:
            self.outputs.append(output)

    def moved(self, request: Request) -> None:
        """The request's first sequence has got a slot, or its last has lost it."""
        (self.entered if request.num_running else self.left).append(request.number)
        if request.gathered:
            self.outputs += self.gathered.release(request.number, list(request.sequences))


class Frontends:
    """All sessions, oldest first."""

    def __init__(self) -> None:
        self.open_requests = OpenRequests()  # of all sessions, counted by tenant
        self.deadlines = Deadlines()  # of these requests
        self._sessions: dict[bytes, FrontendSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FrontendSession]:
        return iter(self._sessions.values())

    def get(self, session: bytes) -> FrontendSession | None:
        return self._sessions.get(session)

    def open(self, session: bytes, name: str) -> FrontendSession:
        opened = self._sessions[session] = FrontendSession(session, name)
        return opened

    def close(self, session: bytes) -> None:
        """Forgets a session; its requests have been ended."""
        del self._sessions[session]

    def opened(self, request: Request) -> None:
        """A request was accepted."""
        self.open_requests.opened(request)
        self.deadlines.watch(request)

    def ended(self, request: Request) -> None:
        """The last of it has ended."""
        self.open_requests.ended(request)
        self.deadlines.forget(request)

    def moved(self, requests: list[Request]) -> None:
        """Requests whose first sequence has got a slot, or whose last has lost it."""
        for request in requests:
            session = self._sessions.get(request.session)
            if session is not None and not request.ended:
                session.moved(request)

    def requests(self) -> Iterator[Request]:
        """Every open request. Don't end any while iterating."""
        for session in self._sessions.values():
            yield from session.requests.values()

    def flush(self, effects: Effects, status: Status | None) -> None:
        """Moves what each session is due into `effects`, in the order in which it must arrive."""
        send = effects.to_frontends.append
        for session in self._sessions.values():
            if session.replies:
                for message, frames in session.replies:
                    send((session.session, message, frames))
                session.replies = []
            if session.outputs or session.entered or session.left:
                for start in range(0, len(session.outputs), MAX_OUTPUTS) or (0,):
                    part = session.outputs[start : start + MAX_OUTPUTS]
                    entered, left = session.entered, session.left
                    send((session.session, Outputs(part, entered, left), ()))
                    session.entered, session.left = [], []
                session.outputs = []
            if status is not None:
                send((session.session, status, ()))
