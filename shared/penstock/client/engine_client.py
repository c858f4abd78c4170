"""A front end's requests, and the engine cores that it has for them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import Any

import zmq

from penstock import logs
from penstock.client.endpoints import Resolver, is_named, parse_endpoints, resolve
from penstock.client.engine_state import EngineState, combined, state_of
from penstock.client.fleet import Fleet
from penstock.client.generation import Generation
from penstock.client.journey import Journey, Request
from penstock.client.lobby import Lobby
from penstock.client.model_text import ModelText
from penstock.client.pool_request import (
    PoolRequest,
    PoolResult,
    check_generates,
    check_input,
    check_task,
)
from penstock.client.refusals import check_prompt, rejection
from penstock.client.routing import AFFINITY_TOKENS, Ask, make_routing
from penstock.client.sampling import stopping, token_sampling
from penstock.client.served_model import ServedModel
from penstock.client.session import EngineSession
from penstock.config import TransportSettings
from penstock.errors import EngineUnavailable, PenstockError, RequestFailed
from penstock.protocol.common import Pooling
from penstock.protocol.to_frontend import Rejected, Status, Welcome
from penstock.sampling_params import SamplingParams
from penstock.terms import Terms

log = logs.get(__name__)

NO_TERMS = Terms()

RESUME_PATIENCE = 60.0
"""Seconds that open requests wait for an engine core to come back."""

_TICK = 0.1
"""Seconds between looks at those that wait for an engine core."""


class EngineClient:
    """Submits requests to engine cores and hands their outputs to Generations.

    Lives in one event loop; no method may be called from another thread.  When a session ends, its
    open requests are submitted again with what they have emitted, to another engine core where
    there is one, else to the next that comes; so their consumers see a pause.  They fail when none
    comes within RESUME_PATIENCE seconds, or one with another model.

    endpoint: a list, see `parse_endpoints`; raises InvalidRequest.  routing: one of
    `routing.POLICIES`.  routed: requests placed, by the engine's number and why it was chosen.
    moved: those placed again, on another engine core.  renumbered: those of them that have tokens
    which were computed in another way.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        name: str,
        settings: TransportSettings | None = None,
        routing: str = "prefix",
        resolver: Resolver = resolve,
    ) -> None:
        self._endpoint = endpoint
        self._name = name
        self._settings = settings or TransportSettings()
        self._routing = make_routing(routing)
        endpoints = parse_endpoints(endpoint)
        self._contexts: list[zmq.Context[Any]] = [zmq.Context()]
        self._fleet = Fleet(endpoints, self._session, self._dropped, resolver)
        self._numbers = itertools.count(1)
        self._lobby = Lobby()
        self._model = ServedModel()
        self._placing_due = False
        self._closed = False
        self._ticker: asyncio.Task[None] | None = None
        self._connected_event = asyncio.Event()
        self.due: list[Generation] = []
        self.routed: Counter[tuple[int, str]] = Counter()
        self.moved = 0
        self.renumbered = 0

    def _session(self, index: int, endpoint: str) -> EngineSession:
        context = self._contexts[0]
        if is_named(endpoint):
            # ZeroMQ asks for a host's address in the thread that moves all of a context's bytes: a
            # resolver that is slow to answer for one engine would silence the others.
            context = zmq.Context()
            self._contexts.append(context)
        return EngineSession(
            index, endpoint, context, self._name, self._settings, self._numbers, self
        )

    @property
    def connected(self) -> bool:
        """Whether there is a session with an engine core."""
        return self._connected_event.is_set()

    @property
    def welcome(self) -> Welcome | None:
        """What holds for all engine cores; None before the first."""
        return self._model.welcome

    @property
    def text(self) -> ModelText | None:
        return self._model.text

    @property
    def status(self) -> Status | None:
        """Of all engine cores as if they were one, see `combined`."""
        return combined(self._fleet.sessions)

    @property
    def engines(self) -> list[EngineState]:
        """Each engine core that is dialled."""
        now = time.monotonic()
        return [state_of(session, now) for session in self._fleet]

    @property
    def open_requests(self) -> int:
        return len(self._lobby) + sum(len(session.open) for session in self._fleet)

    @property
    def last_reason(self) -> str:
        """Why the last session, or attempt at one, ended."""
        reasons = {s.endpoint: s.refused or s.link.last_reason for s in self._fleet}
        told = {endpoint: reason for endpoint, reason in reasons.items() if reason}
        if len(self._fleet) == 1:
            return "".join(told.values())
        return "; ".join(f"{endpoint}: {reason}" for endpoint, reason in told.items())

    def status_age(self, now: float) -> float:
        """Seconds since an engine core last told its state; infinite when none did."""
        ages = (s.status_age(now) for s in self._fleet if s.connected)
        return min(ages, default=float("inf"))

    async def start(self) -> None:
        """Begins to dial. Returns at once; see wait_connected."""
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())
            self._fleet.start()

    async def close(self) -> None:
        """Aborts what is open and leaves."""
        self._abort_all()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._fleet.stop()
        self.close_now()

    def close_now(self) -> None:
        """The same for who can't wait, also after the loop's end: the engine learns of it when the
        session ends. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if asyncio._get_running_loop() is not None:
            self._abort_all()
            if self._ticker is not None:
                self._ticker.cancel()
        self._fleet.close()
        for context in self._contexts:
            context.term()
        self._connected_event.clear()
        self._model.close()

    def _abort_all(self) -> None:
        for request in self._requests():
            request.abort()

    def _requests(self) -> list[Request]:
        placed = (request for session in self._fleet for request in session.open.values())
        return [*placed, *self._lobby.requests()]

    async def wait_connected(self, timeout: float) -> None:
        """Raises EngineUnavailable when there is no session after `timeout` seconds."""
        try:
            await asyncio.wait_for(self._connected_event.wait(), timeout)
        except TimeoutError:
            reason = f": {self.last_reason}" if self.last_reason else ""
            raise EngineUnavailable(
                f"no engine core answered at {self._endpoint} in {timeout:g} s{reason}"
            ) from None

    async def submit(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        name: str,
        terms: Terms = NO_TERMS,
        timed: bool = False,
        inherits: bool = False,
        candidates: int | None = None,
        affinity: int = AFFINITY_TOKENS,
    ) -> Generation:
        """Returns once an engine has accepted the request, and compiled its grammar if it has one.

        inherits: it is part of a request that was accepted, so it is not refused for lack of room.
        candidates: log-probabilities of each token to report, more than clients may ask for.
        affinity: so many of the first tokens choose the engine; parts of a request say how long
        its prompt was, so that they follow it.
        Raises InvalidRequest, Overloaded (with retry_after; Limited is one), DeadlineExceeded or
        EngineUnavailable.  When the caller is cancelled while it waits, the request is aborted.
        """
        terms.check_time()
        welcome, text = self.welcome, self.text
        if not self.connected or welcome is None or text is None:
            raise EngineUnavailable("there is no session with an engine core at the moment")
        check_generates(welcome)
        check_prompt(prompt_token_ids, welcome)
        wanted = params.structured_outputs
        grammar = (
            None
            if wanted is None
            else wanted.grammar_within(
                welcome.limits.max_grammar_bytes, welcome.limits.grammar_kinds
            )
        )
        generation = Generation(
            name=name,
            prompt_token_ids=prompt_token_ids,
            params=params,
            sampling=token_sampling(params, welcome.seed, text.tokenizer, candidates),
            stopping=stopping(params, len(prompt_token_ids), welcome.limits.max_model_len),
            grammar=grammar,
            tokenizer=text.tokenizer,
            terms=terms,
            journey=_journey(prompt_token_ids, terms, affinity),
            on_due=self.due.append,
            timed=timed,
            inherits=inherits,
        )
        self._place_new(generation)
        try:
            await generation.accepted
            await generation.prepared
        except asyncio.CancelledError:
            generation.abort()
            raise
        return generation

    async def pool(
        self,
        prompt_token_ids: list[int],
        pooling: Pooling,
        *,
        name: str,
        terms: Terms = NO_TERMS,
    ) -> PoolResult:
        """What a pooling model makes of the input. Raises as `submit` does, and RequestFailed.

        When the caller is cancelled while it waits, the request is aborted.
        """
        terms.check_time()
        welcome = self.welcome
        if not self.connected or welcome is None:
            raise EngineUnavailable("there is no session with an engine core at the moment")
        check_task(pooling.task, welcome)
        check_input(prompt_token_ids, welcome)
        request = PoolRequest(
            name=name,
            prompt_token_ids=prompt_token_ids,
            pooling=pooling,
            terms=terms,
            journey=_journey(prompt_token_ids, terms, AFFINITY_TOKENS),
        )
        self._place_new(request)
        try:
            return await asyncio.shield(request.result)
        finally:
            request.abort()

    def _place_new(self, request: Request) -> None:
        if not self._place(request):
            # `connected` said otherwise, so one is about to come or go.
            self._lobby.enter(request, next(self._numbers), time.monotonic())

    def _place(self, request: Request, *, but: EngineSession | None = None) -> bool:
        """Submits it to the engine core that is to have it; False where there is none."""
        journey = request.journey
        engines = self._fleet.candidates(but, journey.numerics)
        if not engines:
            return False
        session, why = self._routing.choose(journey.ask, engines)
        self.routed[session.index, why] += 1
        if journey.endpoint not in (None, session.endpoint):
            self.moved += 1
        boot = session.welcome.boot if session.welcome is not None else None
        if journey.ran_on not in (None, boot):
            request.deaths += 1
        journey.endpoint, journey.ran_on = session.endpoint, None
        session.enter(request)
        return True

    def _resume(self, requests: list[Request]) -> None:
        """Submits again what has lost its engine core; what finds none goes on waiting."""
        now = time.monotonic()
        count = 0
        for request in requests:
            if not self._place(request):
                self._lobby.enter(request, next(self._numbers), now)
                continue
            count += 1
        if count:
            log.info("requests submitted again", count=count)

    async def _tick(self) -> None:
        while True:
            self._lobby.lose_patience(time.monotonic(), RESUME_PATIENCE)
            self._fleet.drop_retired()
            self._reconsider()
            await asyncio.sleep(_TICK)

    # What sessions tell.

    def session_opened(self, session: EngineSession, welcome: Welcome, frames: list[bytes]) -> None:
        """An engine core has answered: it is taken in, or refused."""
        session.welcome, session.refused = welcome, self._objection(session, welcome)
        if session.refused:
            log.error("engine core refused", endpoint=session.endpoint, reason=session.refused)
            return
        connected = [
            s.welcome for s in self._fleet if s.connected and s.welcome and s is not session
        ]
        previous = self.welcome
        try:
            self._model.adopt(welcome, frames, connected)
        except PenstockError as error:
            session.welcome, session.refused = None, str(error)
            log.error("the engine core's model can't be used", reason=str(error))
            session.link.end(str(error))
            return
        if previous is not None and previous.digest != welcome.digest:
            self._lobby.fail(RequestFailed("the engine core came back with another model"))
        self._connected_event.set()
        log.info(
            "session opened", model=welcome.model, boot=welcome.boot, endpoint=session.endpoint
        )
        self._resume(self._lobby.leave())

    def session_lost(self, session: EngineSession, reason: str, now: float) -> None:
        """Its requests are placed elsewhere, once every other session was looked at: several may
        have ended at once."""
        log.warning("session with the engine core ended", reason=reason, endpoint=session.endpoint)
        lost = [request for request in session.open.values() if not request.finished]
        session.open.clear()
        boot = session.welcome.boot if session.welcome is not None else None
        # An engine core that drained and left has not died of anything that it ran; nor has one
        # whose silence was our own.
        if session.draining or session.slept:
            boot = None
        for request in lost:
            request.journey.ran_on = boot
            self._lobby.enter(request, next(self._numbers), now)
        connected = [s.welcome for s in self._fleet if s.connected and s.welcome is not None]
        if connected:
            self._model.agree(connected)
        else:
            self._connected_event.clear()
        if len(self._lobby) and not self._placing_due:
            self._placing_due = True
            asyncio.get_running_loop().call_soon(self._place_waiting)

    def _place_waiting(self) -> None:
        self._placing_due = False
        if self._closed:
            return
        for session in self._fleet.sessions:
            session.pump()
        self._resume(self._lobby.leave())

    def status_changed(self, session: EngineSession, before: Status | None) -> None:
        """An engine core has told its state."""
        if session.draining and not (before is not None and before.draining):
            log.info("engine core drains", endpoint=session.endpoint)

    def numerics_changed(self, session: EngineSession, request: Request, before: str) -> None:
        """A request's next tokens are computed otherwise than those that it has."""
        self.renumbered += 1
        log.warning(
            "request goes on where numbers differ",
            request=request.name,
            endpoint=session.endpoint,
            before=before,
            now=session.fingerprint,
        )

    def rejected(self, session: EngineSession, request: Request | None, message: Rejected) -> None:
        """Another engine core may have room where this one has none, or has begun to drain."""
        if request is None:
            return
        journey = request.journey
        if message.code in ("unavailable", "overloaded") and not journey.refused:
            session.forget(request)
            journey.refused = True
            if self._place(request, but=session):
                return
        request.fail(rejection(message))

    def _dropped(self, session: EngineSession) -> None:
        log.info("engine core dropped", endpoint=session.endpoint)

    def _objection(self, session: EngineSession, welcome: Welcome) -> str:
        """Why an engine core is not used; empty: it is. Where nobody else is known who serves our
        model, it has a successor."""
        others = [s for s in self._fleet if s is not session and s.welcome and not s.refused]
        for other in others:
            if other.connected and other.welcome and other.welcome.boot == welcome.boot:
                return f"it is the engine core at {other.endpoint}"
        return self._model.misfit(welcome) if others else ""

    def _reconsider(self) -> None:
        """Dials those again who were refused for a reason that is gone: it takes their tokenizer
        to use them. Not while requests wait that they could not go on with."""
        if len(self._lobby):
            return
        for session in self._fleet.sessions:
            welcome = session.welcome
            if not session.refused or not session.answered or welcome is None:
                continue
            if not self._objection(session, welcome):
                session.link.end("it may be used now")


def _journey(prompt: list[int], terms: Terms, affinity: int) -> Journey:
    return Journey(Ask(prompt, min(affinity, AFFINITY_TOKENS), terms.tenant, terms.cache_salt))
