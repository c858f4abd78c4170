"""Which engine core has which request, and what becomes of it when one comes or goes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import Any

import zmq

from penstock.client.adapters import AdapterDirectory
from penstock.client.first_alone import FirstAlone
from penstock.client.fleet import Endpoints, Fleet, Resolver, is_named
from penstock.client.generation import Generation
from penstock.client.live import LiveFeed
from penstock.client.placement import OpenRequest, Placement
from penstock.client.prefilling import PrefillAhead, prefill_engines
from penstock.client.rejections import rejection
from penstock.client.routing import Routing, Why
from penstock.client.served_model import ModelText, ServedModel
from penstock.client.session import EngineSession
from penstock.client.session_state import count_tries
from penstock.client.session_turns import ConsumerTurns
from penstock.client.waiting_room import WaitingRoom
from penstock.config.settings import TransportSettings
from penstock.errors import PenstockError, RequestFailed
from penstock.process import logs
from penstock.protocol.common import NamedAdapter
from penstock.protocol.from_frontend import NameAdapters
from penstock.protocol.live import Snapshot
from penstock.protocol.to_frontend import Rejected, Status, Welcome
from penstock.transport.curve import needs_keys
from penstock.transport.wire import LEAVING

log = logs.get(__name__)

MAX_PLACED = 256
"""Requests that are placed again in one turn of the event loop."""


class Dispatch:
    """Places requests on sessions, which tell it what happens to them.

    connected: set while there is a session with an engine core that may be used.  due: generations
    with a sink that this turn has given something.  routed, moved, live: see EngineClient.
    Raises StartupError where an endpoint may not be dialled, see `transport.curve.needs_keys`.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        name: str,
        settings: TransportSettings,
        routing: Routing,
        resolver: Resolver,
    ) -> None:
        for place in (*endpoints.fixed, *(f"tcp://{n.host}:{n.port}" for n in endpoints.names)):
            needs_keys(place, settings)  # Here and at once, not when a name has an address.
        self._name = name
        self._settings = settings
        self._routing = routing
        self._contexts: list[zmq.Context[Any]] = [zmq.Context()]
        self._numbers = itertools.count(1)
        self._placing_due = False
        self._closed = False
        self._lost_at: float | None = None
        self.fleet = Fleet(endpoints, self._session, self._dropped, resolver)
        self.waiting_room = WaitingRoom()
        self.model = ServedModel()
        self.connected = asyncio.Event()
        self._first_alone = FirstAlone(self.connected)
        self._reading = asyncio.Lock()
        self.turns: ConsumerTurns[Generation] = ConsumerTurns()
        self.routed: Counter[tuple[int, str]] = Counter()
        self.moved = 0
        self.live = LiveFeed()
        self.adapters = AdapterDirectory()

    def _session(self, index: int, endpoint: str) -> EngineSession:
        self.live.ended(endpoint, "no session yet")
        context = self._contexts[0]
        if is_named(endpoint):
            # ZeroMQ asks for a host's address in the thread that moves all of a context's bytes: a
            # resolver that is slow to answer for one engine would silence the others.
            context = zmq.Context()
            self._contexts.append(context)
        return EngineSession(
            index, endpoint, context, self._name, self._settings, self._numbers, self
        )

    def close(self) -> None:
        """Leaves all engine cores. Once."""
        self._closed = True
        self.fleet.close()
        for context in self._contexts:
            context.term()
        self.connected.clear()
        self.model.close()

    def away(self, now: float) -> float:
        """Seconds since the last of all sessions ended; infinite where none has, or in order."""
        return float("inf") if self._lost_at is None else now - self._lost_at

    def requests(self) -> list[OpenRequest]:
        """All open requests."""
        placed = (request for session in self.fleet for request in session.open.values())
        return [*placed, *self.waiting_room.requests()]

    def look(self, now: float, patience: float) -> None:
        """Looks after what no message tells of; to be called all the time."""
        self.waiting_room.lose_patience(self.fleet, now, patience)
        self.waiting_room.refuse_hopeless(self.fleet, now)
        for session in self.fleet:
            session.pacing.expire(now)
        self.fleet.drop_retired()
        self._reconsider()
        self.live.tick(now)

    def fingerprint_for(self, placement: Placement) -> str | None:
        """Returns what a request that came now would be computed with; None: not known yet."""
        engines = [each for each in self.fleet.candidates() if each.fingerprint is not None]
        if not engines:
            return None
        return self._routing.choose(placement.ask, engines)[0].fingerprint

    def place_ahead(self, generation: Generation) -> None:
        """Submits a request for the first time, after its prompt where that is computed ahead."""
        engines = prefill_engines(self.fleet, generation)
        if not engines:
            self.place_new(generation)
            return
        ahead = PrefillAhead(generation, self.place_new)
        session, _ = self._routing.choose(ahead.placement.ask, engines)
        self.routed[session.index, "prefill"] += 1
        self._have_expected(ahead)
        session.enter(ahead, new=True)

    def _have_expected(self, ahead: PrefillAhead) -> None:
        """Tells the one that is to go on with it."""
        engines = self.fleet.candidates(only=ahead.held)
        if engines and all(engine.expects for engine in engines):
            ahead.expect_at(*self._routing.choose(ahead.placement.ask, engines))

    def _choose(
        self, placement: Placement, engines: list[EngineSession]
    ) -> tuple[EngineSession, Why]:
        """Returns the engine core for a request, and why: one that has fetched the prompt's KV
        blocks, or the routing's choice."""
        expected, placement.expected = placement.expected, None
        if expected is not None:
            for session in engines:
                if session.endpoint == expected[0]:
                    return session, expected[1]
        return self._routing.choose(placement.ask, engines)

    def place_new(self, request: OpenRequest) -> None:
        """Submits a request for the first time."""
        if not self._place(request, new=True):
            # `connected` said otherwise, so one is about to come or go.
            self.waiting_room.enter(request, next(self._numbers), time.monotonic())

    def _place(
        self, request: OpenRequest, *, new: bool = False, but: EngineSession | None = None
    ) -> bool:
        """Submits it to the engine core that is to have it; False where there is none. new: it was
        never sent to an engine core."""
        placement = request.placement
        engines = self.fleet.candidates(but, placement.only(begun=request.begun))
        if not engines:
            return False
        session, why = self._choose(placement, engines)
        self.routed[session.index, why] += 1
        if placement.endpoint not in (None, session.endpoint):
            self.moved += 1
        placement.endpoint = session.endpoint
        request.holder.forget(request)
        session.enter(request, new=new)
        return True

    def _resume_soon(self) -> None:
        """Resumes in a turn of its own: several sessions may end, or begin, at once."""
        if len(self.waiting_room) and not self._placing_due:
            self._placing_due = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        """Submits again what has lost its engine core, some in each turn; what finds none that may
        have it goes on waiting."""
        self._placing_due = False
        if self._closed:
            return
        for session in self.fleet.sessions:
            session.pump()
        placed = 0
        nowhere: set[str | None] = set()
        for request in self.waiting_room.requests():
            only = request.placement.only(begun=request.begun)
            if only not in nowhere and self._place(request):
                placed += 1
            else:
                nowhere.add(only)
            if placed == MAX_PLACED:
                break
        if placed:
            log.info("requests submitted again", count=placed)
            self._resume_soon()

    # What sessions ask and tell.

    @property
    def text(self) -> tuple[str, str, str] | None:
        """What names the tokenizer and the template that are there."""
        return self.model.held

    async def may_dial(self, session: EngineSession) -> None:
        """Waits until a session may begin to dial."""
        await self._first_alone.may_dial(session.index, len(self.fleet), has_text=bool(self.text))

    async def session_opened(
        self, session: EngineSession, welcome: Welcome, frames: list[bytes]
    ) -> None:
        """An engine core has answered: it is taken in, or refused."""
        for request in self.requests():
            request.blame.answered(session.endpoint, welcome.boot)
        try:
            if not frames and self.text and self._lacks_text(session, welcome, frames):
                session.transport.refuse("it was told of a tokenizer that is gone by now")
                return
            text = await self._read_text(session, welcome, frames)
        except PenstockError as error:
            session.welcome, session.refused = None, str(error)
            log.error("the engine core's model can't be used", reason=str(error))
            session.transport.refuse(str(error))
            return
        if session.transport.opened:
            session.take_in(welcome, self._objection(session, welcome))
        if not session.connected:
            if text is not None:
                text.close()
            if session.refused:
                log.error("engine core refused", endpoint=session.endpoint, reason=session.refused)
            return
        previous = self.model.welcome
        self.model.adopt(welcome, text, self._others(session))
        if previous is not None and previous.digest != welcome.digest:
            self.waiting_room.fail(RequestFailed("the engine core came back with another model"))
        self.connected.set()
        self._tell_adapters(session, self.adapters.changes())
        self.live.opened(session.endpoint, welcome, session.send)
        log.info(
            "session opened", model=welcome.model, boot=welcome.boot, endpoint=session.endpoint
        )
        self._resume_soon()

    async def _read_text(
        self, session: EngineSession, welcome: Welcome, frames: list[bytes]
    ) -> ModelText | None:
        """Returns an engine core's tokenizer and template; None where those that are there do.
        Read in a thread: it may come while others' streams run, and takes up to a second.  One at a
        time: of several that come at once, mostly one text serves all."""
        if not self._lacks_text(session, welcome, frames):
            return None
        async with self._reading:
            if not self._lacks_text(session, welcome, frames):
                return None
            return await asyncio.to_thread(ModelText.from_welcome, welcome, frames)

    def _lacks_text(self, session: EngineSession, welcome: Welcome, frames: list[bytes]) -> bool:
        refused = self._objection(session, welcome)
        return not refused and self.model.needs_text(welcome, frames, self._others(session))

    def _others(self, session: EngineSession) -> list[Welcome]:
        """What the other connected engine cores said."""
        others = (each for each in self.fleet if each.connected and each is not session)
        return [each.welcome for each in others if each.welcome]

    def session_lost(self, session: EngineSession, reason: str, now: float) -> None:
        """Places the requests of a lost session elsewhere, once every other session was looked at:
        several may have ended at once."""
        tell = log.info if reason == LEAVING else log.warning
        tell("session with the engine core ended", reason=reason, endpoint=session.endpoint)
        self.live.ended(session.endpoint, reason)
        # An engine core that drained and left has not died of anything that it ran; nor has one
        # whose silence was our own.
        innocent = session.draining or session.slept
        boot = session.welcome.boot if session.welcome is not None else None
        unanswered = () if innocent else session.pacing.unanswered
        tried = [session.open[number] for number in unanswered if number in session.open]
        lost = [request for request in session.open.values() if not request.finished]
        session.open.clear()
        session.pacing.clear()
        for request in lost:
            request.blame.lost(session.endpoint, boot, innocent=innocent)
            self.waiting_room.enter(request.successor, next(self._numbers), now)
        count_tries(tried)
        connected = [s.welcome for s in self.fleet if s.connected and s.welcome is not None]
        if connected:
            self.model.agree(connected)
        else:
            self.connected.clear()
            self._lost_at = None if session.draining else now
        self._resume_soon()

    def status_changed(self, session: EngineSession, before: Status | None) -> None:
        """Called when an engine core has reported its state."""
        self.fleet.status_told()
        if before is None or before.fingerprint != session.fingerprint:
            self._resume_soon()
        if session.draining and not (before is not None and before.draining):
            log.info("engine core drains", endpoint=session.endpoint)
        if session.hands_over:
            self._move(self.fleet.take_away(session, MAX_PLACED), session)

    def _move(self, leaving: list[OpenRequest], session: EngineSession) -> None:
        if not leaving:
            return
        now = time.monotonic()
        for request in leaving:
            self.waiting_room.enter(request, next(self._numbers), now)
        log.info(
            "requests move to another engine core", count=len(leaving), endpoint=session.endpoint
        )
        self._resume_soon()

    def adapters_named(self, session: EngineSession, reported: list[NamedAdapter]) -> None:
        """Called when an engine core has reported its names of adapters; sends what is new to the
        others."""
        if session.refused:
            return
        changed = self.adapters.learn(reported)
        for other in self.fleet:
            if other is not session:
                self._tell_adapters(other, changed)

    def name_adapters(self, adapters: list[NamedAdapter]) -> None:
        """Sends adapters that were loaded or unloaded here to every engine core."""
        self.adapters.learn(adapters)
        for session in self.fleet:
            self._tell_adapters(session, adapters)

    def _tell_adapters(self, session: EngineSession, adapters: list[NamedAdapter]) -> None:
        welcome = session.welcome
        serves = welcome is not None and welcome.max_lora_rank > 0
        if serves and session.connected and adapters:
            session.send(NameAdapters(adapters))

    def shown(self, session: EngineSession, snapshot: Snapshot, now: float) -> None:
        """An engine core shows itself to those who watch."""
        self.live.take(session.endpoint, snapshot, now)

    def misplaced(self, session: EngineSession, request: OpenRequest) -> None:
        """An engine core would compute a request's next tokens otherwise than it must."""
        self._move([session.give_up(request)], session)

    def rejected(
        self, session: EngineSession, request: OpenRequest | None, message: Rejected
    ) -> None:
        """Another engine core may have room where this one has none, or has begun to drain."""
        if request is None:
            return
        placement = request.placement
        if message.code in ("unavailable", "overloaded") and not placement.refused:
            session.forget(request)
            placement.refused = True
            if self._place(request, new=True, but=session):
                return
        request.fail(rejection(message))

    def _dropped(self, session: EngineSession) -> None:
        log.info("engine core dropped", endpoint=session.endpoint)
        self.live.forget(session.endpoint)

    def _objection(self, session: EngineSession, welcome: Welcome) -> str:
        """Why an engine core is not used; empty: it is. If no other engine core serves our model,
        it is taken for the successor."""
        others = [s for s in self.fleet if s is not session and s.welcome and not s.refused]
        for other in others:
            if other.connected and other.welcome and other.welcome.boot == welcome.boot:
                return f"it is the engine core at {other.endpoint}"
        return self.model.misfit(welcome) if others else ""

    def _reconsider(self) -> None:
        """Dials those again who were refused for a reason that is gone: it takes their tokenizer
        to use them. Not while requests wait that they could not go on with."""
        if len(self.waiting_room):
            return
        for session in self.fleet.sessions:
            welcome = session.welcome
            if not session.refused or not session.answered or welcome is None:
                continue
            if not self._objection(session, welcome):
                session.transport.end("it may be used now")
