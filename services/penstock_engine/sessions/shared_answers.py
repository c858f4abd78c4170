"""Answers that several requests of front ends read, while they are computed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.to_frontend import Prepared, SequenceOutput
from penstock_engine.parts import HasDeadline
from penstock_engine.request.reader import Reader
from penstock_engine.sessions.frontends import FrontendSession
from penstock_engine.sessions.gathered_outputs import Deadlines
from penstock_engine.waiting.queue_bounds import TenantShares

if TYPE_CHECKING:
    from penstock.protocol.common import FinishReason
    from penstock.protocol.from_frontend import Submit
    from penstock_engine.request.request import Request
    from penstock_engine.sessions.effects import Frames
    from penstock_engine.sessions.frontends import Frontends, Reply

SHARED = b"shared"
"""The session of requests that have several readers. Those of front ends have 16 bytes."""

MOST_READERS = 256
"""Readers that one answer may have in all. The next one's is computed again, and shared in turn."""


MOST_IN_ALL = 4096
"""Readers of all answers: each step writes an output for each of them. A tenant may have as many of
them as `leaves_room` lets it."""


class SharedAnswers(FrontendSession, HasDeadline):
    """Stands in for the front end of requests that have several readers, and tells each of these
    what the request gains. A request has at least one while it is here."""

    __slots__ = ("_arrivals", "_frontends", "_numbers", "counted", "deadlines")

    def __init__(self, frontends: Frontends) -> None:
        super().__init__(SHARED, "shared")
        self._frontends = frontends
        self._numbers = self._arrivals = 0
        self.deadlines: Deadlines[Reader] = Deadlines()
        self.counted = TenantShares()
        """Numbers of readers."""

    def has_room(self, request: Request) -> bool:
        """Whether an answer may have one more reader; its first one comes along."""
        more = 1 if request.readers else 2
        return self.counted.may_have(request.tenant, more, MOST_IN_ALL)

    def take_in(self, request: Request, claim: bytes) -> None:
        """A request that one front end reads, or none: who does is its first reader from here on.
        claim: digest of its own; empty for none."""
        former = self._frontends.get(request.session)
        if former is None:
            return
        number = request.number
        del former.requests[number]
        self._frontends.ended(request)  # Each reader is counted, and has its deadline.
        self._numbers += 1
        deadline, request.deadline = request.deadline, None
        request.session, request.number = SHARED, self._numbers
        self.requests[request.number] = request
        if former is self._frontends.orphanage:
            return
        alive = [index for index, each in request.sequences.items() if not each.finished]
        first = self._reader(request, former, number, alive)
        first.claim, first.deadline, first.gathered = claim, deadline, request.gathered
        first.timed, first.cached_due = True, not request.cached_reported
        self._enter(request, first, former)

    def join(
        self, request: Request, frontend: FrontendSession, submit: Submit, now: float
    ) -> Reader:
        """Another reader of a request that is here."""
        wanted = [each for each in submit.sequences if not request.sequences[each.index].finished]
        reader = self._reader(request, frontend, submit.request, [each.index for each in wanted])
        reader.claim = b"" if submit.claim is None else submit.claim.digest
        reader.gathered, reader.accepted = submit.gathered, now
        left = submit.time_left_ms
        reader.deadline = None if left is None else now + left / 1000
        for each in wanted:
            ahead = len(each.emitted) - len(request.sequences[each.index].emitted)
            if ahead > 0:
                reader.ahead[each.index] = ahead
        if request.reported_running:
            frontend.entered.append(submit.request)
        self._enter(request, reader, frontend)
        return reader

    def _reader(
        self, request: Request, frontend: FrontendSession, number: int, open_ones: list[int]
    ) -> Reader:
        self._arrivals += 1
        reader = Reader(request.number, frontend.session, number, open_ones, self._arrivals)
        reader.tenant, reader.accepted = request.tenant, request.accepted
        return reader

    def _enter(self, request: Request, reader: Reader, frontend: FrontendSession) -> None:
        request.readers.append(reader)
        self.counted.add(reader.tenant, 1)
        frontend.readers[reader.number] = reader
        self._frontends.open_requests.opened(reader)
        self.deadlines.watch(reader)

    def part(self, request: Request, reader: Reader) -> None:
        """Forgets a reader that has got all that it is to get."""
        request.readers.remove(reader)
        self.counted.add(reader.tenant, -1)
        self.deadlines.forget(reader)
        self._frontends.open_requests.ended(reader)
        frontend = self._frontends.get(reader.session)
        if frontend is not None:
            del frontend.readers[reader.number]
            frontend.gathered.release(reader.number, list(request.sequences))

    def tell_end(
        self,
        request: Request,
        reader: Reader,
        finish: FinishReason,
        error: str = "",
        *,
        index: int | None = None,
    ) -> None:
        """Ends a reader's open sequences, or one of them, which go on for others."""
        for each in sorted(reader.open) if index is None else [index]:
            output = SequenceOutput(
                reader.number,
                each,
                finish=finish,
                error=error or None,
                error_code="unavailable" if error else None,
            )
            self._tell(request, reader, output)

    def reply(self, message: Reply, frames: Frames = ()) -> None:
        """Says that a grammar was compiled: nothing else is said to a request that has run."""
        if isinstance(message, Prepared):
            for reader in self.requests[message.request].readers:
                frontend = self._frontends.get(reader.session)
                if frontend is not None:
                    frontend.reply(Prepared(reader.number))

    def give(self, request: Request, output: SequenceOutput) -> None:
        if request.kept is not None:
            request.kept.note(output)
        for reader in list(request.readers):
            part = reader.of(output, request.cached_tokens)
            if part is not None:
                self._tell(request, reader, part)

    def _tell(self, request: Request, reader: Reader, output: SequenceOutput) -> None:
        frontend = self._frontends.get(reader.session)
        if frontend is not None:
            frontend.deliver(output, gathered=reader.gathered)
        if output.finish is not None:
            reader.open.discard(output.sequence)
            if not reader.open:
                self.part(request, reader)

    def moved(self, request: Request) -> None:
        for reader in request.readers:
            frontend = self._frontends.get(reader.session)
            if frontend is not None:
                frontend.tell_moved(
                    reader.number,
                    runs=bool(request.num_running),
                    held=sorted(reader.open) if reader.gathered else [],
                )

    def release(self, request: Request) -> None:
        """A request that its last reader has left is another session's from here on."""
        last = request.readers[-1]
        for reader in list(request.readers):
            self.part(request, reader)
        del self.requests[request.number]
        request.deadline, request.gathered = last.deadline, last.gathered
        self._frontends.opened(request)

    def next_deadline(self) -> float:
        """The earliest deadline of a reader; infinity if none has one."""
        return self.deadlines.next_time()
