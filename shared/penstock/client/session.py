"""The asyncio session of a front end with one engine core."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import zmq

from penstock.client.media_sending import MediaSending
from penstock.client.open_calls import OpenCalls
from penstock.client.placement import Computing, OpenRequest
from penstock.client.session_owner import Owner
from penstock.client.session_state import EngineProgress, Pacing, ReportedState
from penstock.client.session_turns import LoopTurns
from penstock.config.settings import TransportSettings
from penstock.process import logs
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.from_frontend import Abort, ExpectPrompt, ForgetPrompt, FromFrontend, Hello
from penstock.protocol.live import Snapshot
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
    ToFrontend,
    Unchanged,
    Welcome,
)
from penstock.request.terms import Terms
from penstock.transport import heartbeat
from penstock.transport.events import Ended, Event, Opened
from penstock.transport.session_client import SessionClient

log = logs.get(__name__)

UNANSWERED, UNANSWERED_PACE = 2.0, 0.2
"""Seconds after which an engine core that has not answered is looked at so seldom, in seconds."""
AT_ONCE = 16
"""Tokens of a message after which those that have a sink go to it."""

_decoder = msgspec.msgpack.Decoder(ToFrontend)


class EngineSession(ReportedState):
    """Dials one engine core, and again whenever the session ends.

    open: its requests, by number; pacing: which of them it knows.  calls: open calls of its
    workers.  expected: numbers of prompts that it was sent to expect.  retired: its address is no
    longer among those given, so it gets nothing new.  slept: this process itself was suspended
    before the session ended.
    """

    def __init__(
        self,
        index: int,
        endpoint: str,
        context: zmq.Context[Any],
        name: str,
        settings: TransportSettings,
        numbers: Iterator[int],
        owner: Owner[EngineSession],
    ) -> None:
        super().__init__()
        self.index = index
        self.endpoint = endpoint
        self.transport: SessionClient[ToFrontend] = SessionClient(
            context,
            endpoint,
            _decoder,
            lambda: Hello(
                list(PROTOCOL_VERSIONS), name, os.getpid(), unchanged=True, text=owner.text
            ),
            settings,
        )
        self.open: dict[int, OpenRequest] = {}
        self.pacing = Pacing(self._submit)
        self.calls = OpenCalls()
        self.expected: set[int] = set()
        self.retired = False
        self.slept = False
        self._settings = settings
        self._numbers = numbers
        self._owner = owner
        self._media = MediaSending(endpoint, self.open, self.send)
        self._progress = EngineProgress(settings.progress_timeout)
        self._submitted = 0
        self._polled = time.monotonic()
        self._turns = LoopTurns(self.transport.lock, self.pump)
        self._closed = False
        self._ticker: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        """Takes in what the engine core says first; the rest of what it says waits until that is
        done."""

    @property
    def load(self) -> int:
        """Sequences that it runs and has waiting, as it last said, and ours since then."""
        status = self.status
        ours = self._submitted + self.pacing.waiting + len(self.expected)
        return ours + (0 if status is None else status.waiting + status.running)

    def start(self) -> None:
        """Begins to dial."""
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())
            heartbeat.PROCESS.join(self.transport, self._turns.waker())

    def enter(self, request: OpenRequest, *, new: bool) -> None:
        """Submits it here, as soon as there is room. new: for the first time."""
        request.key, request.holder = next(self._numbers), self
        self.open[request.key] = request
        if self._compare(request):
            self.pacing.enter(request, new=new)

    def _submit(self, request: OpenRequest) -> bool:
        if not self.send(request.submission()):
            return False
        self._submitted += request.open_sequences
        return True

    def _compare(self, request: OpenRequest) -> bool:
        """Whether it is computed as its tokens so far were, as far as that is known; if not, it
        leaves. An engine core tells what it computes with before anything is computed with it."""
        if request.placement.placed(self.computing, begun=request.begun):
            return True
        self._owner.misplaced(self, request)
        return False

    def abort(self, request: OpenRequest) -> None:
        """Ends it in the engine core, if that knows it."""
        if not self.pacing.waits(request.key):
            self.send(Abort(request.key, kept=request.terms.claim is not None))

    def give_up(self, request: OpenRequest) -> OpenRequest:
        """Takes it away from the engine core. Returns what is to go on elsewhere."""
        if not self.pacing.waits(request.key):
            self.send(Abort(request.key, handed_over=True))
        self.forget(request)
        boot = None if self.welcome is None else self.welcome.boot
        request.blame.lost(self.endpoint, boot, innocent=True)
        return request.successor

    def forget(self, request: OpenRequest) -> None:
        """Forgets a request that is over."""
        self.open.pop(request.key, None)
        self.pacing.forget(request.key)

    def expect(self, prompt_token_ids: list[int], terms: Terms) -> int:
        """A request with this prompt is to follow, once another engine core has computed it.
        Returns the number by which it is forgotten."""
        number = next(self._numbers)
        self.expected.add(number)
        self.send(
            ExpectPrompt(number, prompt_token_ids, terms.cache_salt, terms.tenant, terms.adapter)
        )
        return number

    def forget_expected(self, number: int) -> None:
        """Tells the engine core that an expected request has come, or will not."""
        if number in self.expected:
            self.expected.discard(number)
            self.send(ForgetPrompt(number))

    def send(self, message: FromFrontend, frames: Sequence[memoryview] = ()) -> bool:
        """False when there is no session (nothing was sent)."""
        sent = self.transport.send(message, frames)
        # Sending may consume the socket's edge-triggered readiness: look again soon.
        self._turns.soon()
        return sent

    async def stop(self) -> None:
        """Closes the session in order; nothing is reported any more."""
        for task in self._tasks():
            task.cancel()
        await asyncio.gather(*self._tasks(), return_exceptions=True)
        self.close()

    def close(self) -> None:
        """Closes for who can't wait, also after the loop's end. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if asyncio._get_running_loop() is not None:
            for task in self._tasks():
                task.cancel()
            self._media.cancel()
            self._turns.watch(None)
        self._media.close()
        heartbeat.PROCESS.leave(self.transport)
        self.transport.close()
        self._answered = False

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._ticker, self._opening) if task is not None]

    async def _tick(self) -> None:
        await self._owner.may_dial(self)
        while True:
            now = time.monotonic()
            if not self._answered or self.transport.wait_hint(now) <= 0.0:
                # Else what has come meanwhile has brought a turn, or nothing is due.
                self.pump()
                now = time.monotonic()
            pause = max(0.005, self.transport.wait_hint(now))
            if not self._answered and now - self._begun > UNANSWERED:
                # An address without a listener may stay so. A connection wakes us all the same.
                pause = max(pause, UNANSWERED_PACE)
            await asyncio.sleep(pause)

    def pump(self) -> None:
        """Takes what has come, as far as this iteration of the event loop has time for it, and
        dials where needed."""
        self._turns.begin()
        if self._closed:
            return
        now = time.monotonic()
        pause, self._polled = now - self._polled, now
        self.slept = pause > self._settings.peer_timeout / 2
        self._progress.not_heard(pause, now)
        if self._opening is not None:
            return
        for event in self.transport.take(now, self._owner.turns.until(now)):
            self._handle(event, now)
            if self._opening is not None:
                self._turns.watch(None)
                return
        self._owner.turns.has_read(time.monotonic() - now)
        if self._answered and not self.transport.more and (reason := self._progress.stuck(now)):
            self.transport.end(reason)
        self._flush()
        if self._closed:  # Closed by a callback meanwhile.
            return
        self._turns.watch(self.transport.socket)
        if self.transport.wait_hint(now) == 0.0:
            self._turns.soon()

    def _flush(self) -> None:
        """All are written before one goes out: system calls push code and data out of caches."""
        turns = self._owner.turns
        for sink in turns.written:
            sink.put()
        turns.written.clear()
        puts = [put for each in turns.due if (put := each.flush()) is not None]
        turns.due.clear()
        for put in puts:
            put()

    def _handle(self, event: Event[ToFrontend], now: float) -> None:
        if isinstance(event, Ended):
            self._lost(event.reason, now)
        elif isinstance(event, Opened):
            self._opened(event.message, event.frames)
        else:
            self._receive(event.message, now)

    def _opened(self, welcome: ToFrontend, frames: list[bytes]) -> None:
        if not isinstance(welcome, Welcome):
            self.transport.end("the engine core's first message was not Welcome")
            return
        opening = self._owner.session_opened(self, welcome, frames)
        self._opening = asyncio.create_task(opening)
        self._opening.add_done_callback(self._go_on)

    def take_in(self, welcome: Welcome, refused: str) -> None:
        """From here on there is an engine core. refused: why it can't serve ours; empty: it can."""
        self.welcome, self.refused = welcome, refused
        self._answered = True
        self._progress.heard(time.monotonic())

    def _go_on(self, opened: asyncio.Task[None]) -> None:
        self._opening = None
        try:
            opened.result()
        except asyncio.CancelledError:
            return
        except BaseException as error:  # A library written in Rust may panic: no Exception.
            log.error("an engine core can't be taken in", exception=True, endpoint=self.endpoint)
            self.transport.refuse(f"{type(error).__name__}: {error}")
        self.pump()

    def _lost(self, reason: str, now: float) -> None:
        self._answered = False
        self._begun = now
        self._owner.session_lost(self, reason, now)
        self.calls.lost(reason)
        self.expected.clear()
        self.status = self.computing = None
        self._submitted = 0

    def _take_status(self, status: Status, now: float) -> None:
        before, self.status, self._status_at = self.status, status, now
        self._progress.heard(now)
        self._submitted = 0
        computing = Computing.told(status, self.welcome, self.computing)
        if computing != self.computing:
            self.computing = computing
            self.former = self.fingerprint
            for request in list(self.open.values()):
                self._compare(request)
        self._owner.status_changed(self, before)

    def _take_moves(self, entered: list[int], left: list[int]) -> None:
        """Which requests are in a step from here on, and which are no more."""
        for number in entered:
            request = self.open.get(number)
            if request is not None:
                request.blame.entered()
                request.take_entered()
        for number in left:
            request = self.open.get(number)
            if request is not None:
                request.blame.left()

    def _take_outputs(self, outputs: list[SequenceOutput]) -> None:
        """Tokens leave some at a time, so that the first of a step don't wait for the last to be
        looked at; where more messages wait, theirs are merged with them instead."""
        while_few = not self.transport.more
        self._owner.turns.merging = not while_few
        for count, output in enumerate(outputs, start=1):
            if output.finish is not None:
                self.pacing.answered(output.request)
            request = self.open.get(output.request)
            if request is not None:
                request.take(output)
            if while_few and not count % AT_ONCE:
                self._flush()

    def _receive(self, message: ToFrontend, now: float) -> None:
        match message:
            case Outputs(outputs, entered, left):
                self._take_moves(entered, left)
                self._take_outputs(outputs)
            case Status():
                self._take_status(message, now)
            case Unchanged() if self.status is not None:
                self._take_status(self.status, now)
            case Unchanged():
                self.transport.end("the engine core said Unchanged before any Status")
            case Accepted(number, shared):
                self.pacing.answered(number)
                request = self.open.get(number)
                if request is not None:
                    request.placement.accepted(shared=shared)
                    request.take_accepted()
            case Pooled(number):
                request = self.open.get(number)
                if request is not None:
                    request.take_pooled(message)
            case NeedMedia():
                self._media.answer(message)
            case Prepared(number):
                request = self.open.get(number)
                if request is not None:
                    request.take_prepared()
            case Rejected(number):
                self.pacing.answered(number)
                self._owner.rejected(self, self.open.get(number), message)
            case Adapters(adapters):
                self._owner.adapters_named(self, adapters)
            case Called():
                self.calls.take(message)
            case Snapshot():
                self._owner.shown(self, message, now)
            case Welcome():
                self.transport.end("a second Welcome in one session")
