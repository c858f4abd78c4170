"""Submit and Advance: a request is checked, accepted or rejected, and its sequences wait."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock.protocol.from_frontend import Advance, Submit
from penstock.protocol.to_frontend import Accepted, Prepared, Rejected
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.adapters import AdapterHandler
from penstock_engine.handlers.admission import Admission
from penstock_engine.handlers.adoption import Adoption
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.handlers.media import MediaHandler
from penstock_engine.handlers.pooling import check_pooling
from penstock_engine.handlers.validation import check_advance, check_submit
from penstock_engine.kv.keys import prefix_root, root_key
from penstock_engine.media.request_media import RequestMedia
from penstock_engine.request.pooling_tasks import tasks_of
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.request.stopping import check_stop
from penstock_engine.request.timeline import TimelineBuilder
from penstock_engine.sessions.frontends import NOBODY, FrontendSession
from penstock_engine.waiting.queue import Part

DRAINING_RETRY_MS = 1_000
"""Milliseconds after which a front end asks again while this engine core shuts down: another one,
or this one once it has started again."""


class Submissions:
    """Handles the messages that bring work: requests, and the next steps of beam searches."""

    def __init__(self, state: CoreState, finisher: Finisher) -> None:
        facts = state.facts
        self._pooling = facts.pooling
        self._tasks = tasks_of(facts.pooling, facts.model, facts.config)
        self._state = state
        self._finisher = finisher
        self._media = MediaHandler(state, finisher)
        self._adapters = AdapterHandler(state, finisher)
        self._admission = Admission(state)
        self._adoption = Adoption(state, finisher)
        self._arrivals = 0

    def submit(self, frontend: FrontendSession, submit: Submit, now: float) -> None:
        """Accepts or rejects a request, and answers Accepted or Rejected."""
        try:
            self._validate(frontend, submit)
        except InvalidRequest as error:
            code = error.code or ""
            self._reject(
                frontend, Rejected(submit.request, "invalid", error.message, error_code=code)
            )
            return
        if self._adoption.adopt(frontend, submit, now):
            return
        while True:
            found = self._adoption.shareable(submit)
            refusal = self._refusal(submit, found, now)
            limited = refusal is not None and refusal.code == "limited"
            if not limited or not self._adoption.gives_way(submit.tenant):
                break
        if refusal is not None:
            self._reject(frontend, refusal)
        elif found is not None:
            self._adoption.join(found, frontend, submit, now)
        else:
            self._accept(frontend, submit, now)

    def _refusal(self, submit: Submit, found: Request | None, now: float) -> Rejected | None:
        """Returns the rejection of a valid request that isn't accepted now; None otherwise. found:
        its answer is computed already, so it takes no room, and no place if it has no reader."""
        if found is not None:
            free = submit.resumed or found.session == NOBODY
            return None if free else self._admission.over_limit(submit, now)
        return (
            self._leaving(submit)
            or self._admission.refusal(submit, now)
            or self._grammar_refusal(submit, now)
        )

    def advance(self, frontend: FrontendSession, message: Advance, now: float) -> None:
        """Begins the next step of a beam search: its new sequences wait."""
        request = frontend.requests.get(message.request)
        if request is None:
            return  # It was aborted or rejected: the front end knows, or will when it reads that.
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

    def _reject(self, frontend: FrontendSession, refusal: Rejected) -> None:
        self._state.counts.rejected[refusal.code] += 1
        frontend.reply(refusal)

    def _validate(self, frontend: FrontendSession, submit: Submit) -> None:
        if submit.request in frontend.requests or submit.request in frontend.readers:
            raise InvalidRequest(f"request {submit.request} is already open in this session")
        facts = self._state.facts
        ready = self._state.workers.ready
        # Whether workers can align is known only once they are ready; until then they may.
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
            suppressed=len(facts.model.generation.suppress_tokens),
        )
        self._media.check(submit)
        self._adapters.check(submit)
        self._admission.check_priority(submit)

    def _leaving(self, submit: Submit) -> Rejected | None:
        """Returns the rejection of a new request while the engine core drains; None otherwise."""
        if not self._state.draining or submit.resumed:
            return None
        message = "the engine core is shutting down"
        return Rejected(submit.request, "unavailable", message, DRAINING_RETRY_MS)

    def _grammar_refusal(self, submit: Submit, now: float) -> Rejected | None:
        """Returns the rejection of a request with a grammar while too many grammars are in use, or
        too many sequences wait for theirs; None otherwise. The queue doesn't count these."""
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
        # Without prefix caching each request has a root of its own: no other could use its tokens.
        shares, generation = self._state.shares_prefixes, self._state.facts.model.generation
        request = Request(
            frontend.session,
            submit,
            arrival=self._arrivals,
            eos_token_ids=generation.eos_token_ids,
            suppressed=generation.suppress_tokens,
            root=root,
            draft_scope=root if shares else b"",
            media=self._media_of(submit),
            now=now,
        )
        if submit.session is not None and shares:
            weight = self._admission.weight_of(submit)
            self._state.kv_sessions.opened(request, submit.session, weight)
        self._state.frontends.opened(request)
        self._state.kept_answers.watch(request, submit)
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
        if self._state.audits is not None:
            self._state.audits.watch(request)
        if submit.timeline:
            for sequence in request.sequences.values():
                sequence.timeline = TimelineBuilder(self._state.clock)
        self._begin(request, now)

    def _begin(self, request: Request, now: float) -> None:
        """Has each sequence of the request wait for the first thing that it needs, or ends it if
        nothing is left to generate."""
        for sequence in request.sequences.values():
            # Nothing is left to do for max_tokens 0, or if all tokens were emitted elsewhere.
            end = check_stop(sequence, self._state.context_limit.tokens)
            if end is not None:
                self._finisher.end(sequence, end[0], stop_token=end[1])
            elif self._finisher.end_if_poison(sequence):
                continue
            elif not self._awaits_kv(sequence, now):
                self._state.enter(sequence)

    def _awaits_kv(self, sequence: Sequence, now: float) -> bool:
        """Whether the sequence has begun to wait for KV blocks of its prefix from disk or from
        another worker. If its grammar isn't compiled yet, it waits for that instead."""
        if not self._state.grammars.is_ready(sequence.request):
            return False
        until = self._state.disk_kv.ask(sequence, now)
        return until is not None and self._state.remote_kv.park(sequence, until)

    def _root(self, submit: Submit) -> bytes:
        """Key from which the keys of the request's KV blocks are chained: requests with equal roots
        share blocks."""
        if self._state.shares_prefixes:
            return prefix_root(submit.tenant, submit.cache_salt, submit.adapter)
        return root_key("request", str(self._arrivals))

    def _media_of(self, submit: Submit) -> RequestMedia | None:
        """The request's media, renamed so that encodings are shared only within a tenant and salt,
        or not at all if there is no encoder cache. None for a prompt of text."""
        if submit.media is None:
            return None
        root = root_key("request", str(self._arrivals))
        if self._state.facts.config.cache.enable_encoder_cache:
            root = prefix_root(submit.tenant, submit.cache_salt)
        return RequestMedia(submit.media, root, submit.prompt_token_ids)
