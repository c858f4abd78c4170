"""What front ends say, and what it does."""

from __future__ import annotations

from collections.abc import Callable

from penstock import logs
from penstock.errors import InvalidRequest
from penstock.protocol.common import MAX_CALL_SECONDS, MAX_METHOD_CHARS
from penstock.protocol.from_frontend import (
    Abort,
    Advance,
    CallWorkers,
    Finish,
    FromFrontend,
    Hello,
    MediaChunk,
    MediaFile,
    MediaLost,
    NameAdapters,
    PutToSleep,
    ReplaceWeights,
    SetPaused,
    Submit,
    WakeUp,
)
from penstock.protocol.to_frontend import Accepted, Prepared, Rejected
from penstock_engine.core_state import CoreState
from penstock_engine.facts import agree, disagreement, tasks_of
from penstock_engine.handlers.adapters import AdapterHandler
from penstock_engine.handlers.admission import Admission
from penstock_engine.handlers.entry import enter
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.handlers.media import MediaHandler
from penstock_engine.handlers.pooling import check_pooling
from penstock_engine.handlers.validation import check_advance, check_submit
from penstock_engine.handlers.weights import WeightsHandler
from penstock_engine.kv.keys import prefix_root, root_key
from penstock_engine.media.request_media import RequestMedia
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.request.stopping import check_stop
from penstock_engine.request.timeline import TimelineBuilder
from penstock_engine.sessions.frontends import MAX_FRONTENDS, FrontendSession
from penstock_engine.waiting.queue import Part

log = logs.get(__name__)

DRAINING_RETRY_MS = 1_000
"""When to ask again: another engine core, or this one's next life."""


class FromFrontends:
    """Handles the events of front ends' sessions.

    after_error: called when a message met an internal error, once its session has been ended.
    """

    def __init__(
        self,
        state: CoreState,
        finisher: Finisher,
        after_error: Callable[[], None],
    ) -> None:
        facts = state.facts
        self._pooling = facts.pooling
        self._tasks = tasks_of(facts.pooling, facts.model, facts.config)
        self._after_error = after_error
        self._state = state
        self._finisher = finisher
        self._media = MediaHandler(state, finisher)
        self._adapters = AdapterHandler(state, finisher)
        self._weights = WeightsHandler(state)
        self._admission = Admission(state)
        self._arrivals = 0

    def opened(self, session: bytes, message: FromFrontend) -> None:
        """A first message. Answered by a Welcome, or the session is ended."""
        if not isinstance(message, Hello):
            self._refuse(session, "the first message must be Hello")
            return
        version = agree(message.versions)
        if version is None:
            self._refuse(session, disagreement(message.versions))
            return
        if len(self._state.frontends) >= MAX_FRONTENDS:
            self._refuse(session, f"{MAX_FRONTENDS} front ends are connected already")
            return
        frontend = self._state.frontends.open(session, message.name)
        frames = (self._state.facts.tokenizer, self._state.facts.template)
        frontend.reply(self._state.facts.welcome(version, self._state.context_limit.tokens), frames)
        self._adapters.welcome(frontend)
        log.info("front end connected", name=message.name, pid=message.pid)

    def received(
        self, session: bytes, message: FromFrontend, now: float, data: bytes = b""
    ) -> None:
        """A later message. One that can't be handled ends its session, and nothing else. data:
        what a MediaChunk brings."""
        frontend = self._state.frontends.get(session)
        if frontend is None:
            return  # We have ended it; the peer didn't know yet.
        try:
            self._handle(frontend, message, now, data)
        except Exception:
            log.error("internal error", exception=True, handling=type(message).__name__)
            self._refuse(session, "internal error: see the engine's log")
            self._after_error()

    def ended(self, session: bytes, reason: str) -> None:
        """The session is over."""
        frontend = self._state.frontends.get(session)
        if frontend is not None:
            open_requests = len(frontend.requests)
            log.info("front end left", name=frontend.name, reason=reason, open=open_requests)
            self._finisher.close_session(session)
            self._state.calls.forget(session)
            self._state.weights.forget(session)

    def expire(self, now: float) -> None:
        """Ends the requests whose time is over, wherever they are; and whoever has waited for
        KV from elsewhere long enough computes it."""
        for request in self._state.frontends.deadlines.over(now):
            self._finisher.end_all(request, SequenceState.FINISHED_TIMED_OUT)
        for sequence in self._state.remote_kv.over(now):
            enter(self._state, sequence)
        self._media.expire(now)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do next."""
        return self._state.frontends.deadlines.next()

    def _refuse(self, session: bytes, reason: str) -> None:
        self.ended(session, reason)
        self._state.effects.end_frontends.append((session, reason))

    def _handle(
        self, frontend: FrontendSession, message: FromFrontend, now: float, data: bytes
    ) -> None:
        match message:
            case Submit():
                self._submit(frontend, message, now)
            case Advance():
                self._advance(frontend, message, now)
            case Finish():
                self._finish(frontend, message)
            case Abort():
                self._abort(frontend, message, now)
            case MediaFile() | MediaChunk() | MediaLost():
                self._media.received(frontend, message, data)
            case NameAdapters():
                self._name_adapters(frontend, message)
            case SetPaused():
                self._set_paused(frontend, message)
            case PutToSleep():
                self._put_to_sleep(frontend, message)
            case WakeUp(tags):
                log.info("wakes up", by=frontend.name, tags=tags)
                self._state.sleep.wake(tags)
            case CallWorkers():
                self._call_workers(frontend, message, now)
            case ReplaceWeights():
                if self._weights.asked(frontend, message, now) and message.abort:
                    self._abort_all()
            case Hello():
                self._refuse(frontend.session, "Hello came twice")

    def _set_paused(self, frontend: FrontendSession, message: SetPaused) -> None:
        self._state.paused = message.paused
        log.info("paused" if message.paused else "resumed", by=frontend.name, abort=message.abort)
        if message.abort:
            self._abort_all()

    def _put_to_sleep(self, frontend: FrontendSession, message: PutToSleep) -> None:
        log.info("goes to sleep", by=frontend.name, level=message.level, abort=message.abort)
        self._state.sleep.begin(message.level)
        if message.abort:
            self._abort_all()

    def _abort_all(self) -> None:
        for request in list(self._state.frontends.requests()):
            self._finisher.end_all(request, SequenceState.FINISHED_ABORTED)

    def _call_workers(self, frontend: FrontendSession, message: CallWorkers, now: float) -> None:
        if (
            len(message.arguments) > self._state.facts.call_bytes
            or not 0 < message.seconds <= MAX_CALL_SECONDS
            or len(message.method) > MAX_METHOD_CHARS
        ):
            self._refuse(frontend.session, "a call of the workers is out of bounds")
            return
        log.info("workers are called", method=message.method, by=frontend.name)
        self._state.calls.add(frontend.session, message, now)

    def _name_adapters(self, frontend: FrontendSession, message: NameAdapters) -> None:
        try:
            self._adapters.named(message)
        except InvalidRequest as error:
            self._refuse(frontend.session, error.message)

    def _submit(self, frontend: FrontendSession, submit: Submit, now: float) -> None:
        try:
            self._validate(frontend, submit)
        except InvalidRequest as error:
            code = error.code or ""
            self._reject(
                frontend, Rejected(submit.request, "invalid", error.message, error_code=code)
            )
            return
        refusal = (
            self._leaving(submit)
            or self._admission.refusal(submit, now)
            or self._grammar_refusal(submit, now)
        )
        if refusal is not None:
            self._reject(frontend, refusal)
        else:
            self._accept(frontend, submit, now)

    def _reject(self, frontend: FrontendSession, refusal: Rejected) -> None:
        self._state.counts.rejected[refusal.code] += 1
        frontend.reply(refusal)

    def _validate(self, frontend: FrontendSession, submit: Submit) -> None:
        if submit.request in frontend.requests:
            raise InvalidRequest(f"request {submit.request} is open already in this session")
        facts = self._state.facts
        ready = self._state.workers.ready
        # Before one is ready, nobody knows; that worker would say so then.
        aligned_rows = facts.aligned_rows if ready is None or ready.aligns else 0
        check_pooling(submit, self._pooling, self._tasks, facts.max_model_len, aligned_rows)
        check_submit(
            submit,
            vocab_size=self._state.facts.model.config.vocab_size,
            max_len=self._state.context_limit.tokens,
            room=self._state.context_limit.words,
            most_predicted=self._state.facts.max_prediction,
            max_grammar_bytes=self._state.facts.config.grammar.max_grammar_bytes,
            limits=self._state.facts.config.limits,
            max_retention=self._state.facts.config.cache.max_kv_retention_seconds,
        )
        self._media.check(submit)
        self._adapters.check(submit)
        self._admission.check_priority(submit)

    def _leaving(self, submit: Submit) -> Rejected | None:
        """Only what has been accepted before is taken while the engine core drains."""
        if not self._state.draining or submit.resumed:
            return None
        message = "the engine core is shutting down"
        return Rejected(submit.request, "unavailable", message, DRAINING_RETRY_MS)

    def _grammar_refusal(self, submit: Submit, now: float) -> Rejected | None:
        """Why a request with a grammar can't be taken now: what waits for one is not queued."""
        if submit.grammar is None or submit.resumed:
            return None
        most = self._state.facts.config.scheduler
        room = Part(most.max_waiting_requests, most.max_waiting_requests, most.max_waiting_tokens)
        full = self._state.grammars.refusal(
            submit.tenant, self._admission.weight_of(submit), submit.grammar, room
        )
        if full is None:
            return None
        wait_ms = round(
            1000 * self._state.service_rate.retry_after(now, self._state.scheduling.queue)
        )
        return Rejected(submit.request, "overloaded", full, wait_ms)

    def _accept(self, frontend: FrontendSession, submit: Submit, now: float) -> None:
        self._arrivals += 1
        root = self._root(submit)
        # A root of its own is no other request's: to keep what it says for others would be in vain.
        shares = self._state.facts.config.cache.enable_prefix_caching
        request = Request(
            frontend.session,
            submit,
            arrival=self._arrivals,
            eos_token_ids=self._state.facts.model.generation.eos_token_ids,
            root=root,
            draft_scope=root if shares else b"",
            media=self._media_of(submit),
            now=now,
        )
        if submit.session is not None and shares:
            weight = self._admission.weight_of(submit)
            self._state.kv_sessions.opened(request, submit.session, weight)
        self._state.frontends.opened(request)
        self._state.counts.accepted(
            submit.tenant, len(submit.prompt_token_ids), resumed=submit.resumed
        )
        frontend.requests[submit.request] = request
        frontend.reply(Accepted(submit.request))
        self._state.adapters.hold(request)
        if submit.grammar is not None:
            self._state.grammars.hold(request, submit.grammar)
            if self._state.grammars.is_ready(request):
                frontend.reply(Prepared(submit.request))
        if submit.timeline:
            for sequence in request.sequences.values():
                sequence.timeline = TimelineBuilder(self._state.clock)
        self._begin(request, now)

    def _begin(self, request: Request, now: float) -> None:
        """Its sequences wait, for whatever comes first."""
        for sequence in request.sequences.values():
            # It may have nothing to do: max_tokens 0, or all of its tokens emitted before.
            end = check_stop(sequence, self._state.context_limit.tokens)
            if end is not None:
                self._finisher.end(sequence, end[0], stop_token=end[1])
            elif self._finisher.end_if_poison(sequence):
                continue
            elif not self._awaits_kv(sequence, now):
                enter(self._state, sequence)

    def _awaits_kv(self, sequence: Sequence, now: float) -> bool:
        """Whether it waits for its prefix's KV. Not where its grammar isn't ready yet: that wait
        comes first, and is long enough."""
        if not self._state.grammars.is_ready(sequence.request):
            return False
        until = self._state.disk_kv.ask(sequence, now)
        return until is not None and self._state.remote_kv.park(sequence, until)

    def _advance(self, frontend: FrontendSession, message: Advance, now: float) -> None:
        """The next step of a beam search."""
        request = frontend.requests.get(message.request)
        if request is None:
            return  # It was aborted, or never accepted: the front end hears, or has heard, of it.
        try:
            check_advance(
                request,
                message.sequences,
                vocab_size=self._state.facts.model.config.vocab_size,
                max_len=self._state.context_limit.tokens,
                room=self._state.context_limit.words,
                most=self._state.facts.config.limits.max_request_tokens,
            )
        except InvalidRequest as error:
            self._finisher.close(request)
            self._reject(frontend, Rejected(message.request, "invalid", error.message))
            return
        request.advance(message.sequences)
        if request.deadline is not None and request.deadline <= now:
            self._finisher.end_all(request, SequenceState.FINISHED_TIMED_OUT)
        else:
            self._begin(request, now)

    def _root(self, submit: Submit) -> bytes:
        """Of the keys of the request's KV blocks: who may share them."""
        if self._state.facts.config.cache.enable_prefix_caching:
            return prefix_root(submit.tenant, submit.cache_salt, submit.adapter)
        return root_key("request", str(self._arrivals))

    def _media_of(self, submit: Submit) -> RequestMedia | None:
        """With names that say who may share encodings: as the settings have it, or nobody."""
        if submit.media is None:
            return None
        if self._state.facts.config.cache.enable_encoder_cache:
            return RequestMedia(submit.media, prefix_root(submit.tenant, submit.cache_salt))
        return RequestMedia(submit.media, root_key("request", str(self._arrivals)))

    def _finish(self, frontend: FrontendSession, finish: Finish) -> None:
        request = frontend.requests.get(finish.request)
        sequence = request.sequences.get(finish.sequence) if request is not None else None
        if sequence is not None and not sequence.finished:
            self._finisher.end(sequence, SequenceState.FINISHED_STOPPED)

    def _abort(self, frontend: FrontendSession, abort: Abort, now: float) -> None:
        request = frontend.requests.get(abort.request)
        if request is None:
            return
        if abort.handed_over:
            request.handed_over = True
            self._state.drain.taken_away(now)
        self._finisher.close(request)
