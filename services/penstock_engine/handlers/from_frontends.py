"""What front ends say, and what it does."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import InvalidRequest
from penstock.process import logs
from penstock.protocol.common import MAX_CALL_SECONDS, MAX_METHOD_CHARS
from penstock.protocol.from_frontend import (
    Abort,
    Advance,
    CallWorkers,
    ExpectPrompt,
    Finish,
    ForgetPrompt,
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
from penstock.protocol.to_frontend import text_of
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.adapters import AdapterHandler
from penstock_engine.handlers.adoption import Adoption
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.handlers.media import MediaHandler
from penstock_engine.handlers.submissions import Submissions
from penstock_engine.handlers.weights import WeightsHandler
from penstock_engine.kv.keys import prefix_root, prompt_keys
from penstock_engine.request.states import SequenceState
from penstock_engine.sessions.frontends import MAX_FRONTENDS, FrontendSession
from penstock_engine.sessions.versions import agree, disagreement

log = logs.get(__name__)


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
        self._after_error = after_error
        self._state = state
        self._asked = state.serving_parts()
        self._finisher = finisher
        self._media = MediaHandler(state, finisher)
        self._adapters = AdapterHandler(state, finisher)
        self._weights = WeightsHandler(state)
        self._submissions = Submissions(state, finisher)
        self._expecting = ExpectHandler(state)
        self._adoption = Adoption(state, finisher)
        media = (self._media,) if state.has("media") else ()
        self._expiring: tuple[MediaHandler | Adoption, ...] = (*media, self._adoption)

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
            self._refuse(session, f"{MAX_FRONTENDS} front ends are already connected")
            return
        frontend = self._state.frontends.open(session, message.name)
        frontend.knows_unchanged = message.unchanged
        welcome = self._state.facts.welcome(version, self._state.context_limit.tokens)
        frames = (self._state.facts.tokenizer, self._state.facts.template)
        known = message.text is not None and message.text == text_of(welcome)
        frontend.reply(welcome, () if known else frames)
        self._adapters.welcome(frontend)
        log.info("front end connected", name=message.name, pid=message.pid)

    def received(
        self, session: bytes, message: FromFrontend, now: float, data: bytes = b""
    ) -> None:
        """A later message. One that can't be handled ends its session, and nothing else. data:
        what a MediaChunk brings. Raises MemoryError."""
        frontend = self._state.frontends.get(session)
        if frontend is None:
            return  # We have ended it; the peer didn't know yet.
        try:
            self._handle(frontend, message, now, data)
        except MemoryError:
            raise
        except Exception:
            log.error("internal error", exception=True, handling=type(message).__name__)
            self._refuse(session, "internal error; see the engine core's log")
            self._after_error()

    def ended(self, session: bytes, reason: str) -> None:
        """The session is over."""
        frontend = self._state.frontends.get(session)
        if frontend is not None:
            open_requests = len(frontend.requests) + len(frontend.readers)
            log.info(
                "front end disconnected", name=frontend.name, reason=reason, open=open_requests
            )
            for request in list(frontend.requests.values()):
                self._adoption.orphan(request, self._state.clock.now)
            for reader in list(frontend.readers.values()):
                aborted = SequenceState.FINISHED_ABORTED
                self._adoption.leave(reader, aborted, self._state.clock.now)
            self._finisher.close_session(session)
            for part in self._asked:
                part.frontend_ended(session)

    def expire(self, now: float) -> None:
        """Ends requests whose deadline has passed, wherever they are; requests that have waited too
        long for stored KV are computed instead."""
        for request in self._state.frontends.deadlines.over(now):
            self._finisher.end_all(request, SequenceState.FINISHED_TIMED_OUT)
        for sequence in self._state.remote_kv.over(now):
            self._state.enter(sequence)
        for handler in self._expiring:
            handler.expire(now)

    def _refuse(self, session: bytes, reason: str) -> None:
        self.ended(session, reason)
        self._state.effects.end_frontends.append((session, reason))

    def _handle(
        self, frontend: FrontendSession, message: FromFrontend, now: float, data: bytes
    ) -> None:
        match message:
            case Submit():
                self._submissions.submit(frontend, message, now)
            case Advance():
                self._submissions.advance(frontend, message, now)
            case Finish():
                self._finish(frontend, message)
            case Abort():
                self._abort(frontend, message, now)
            case MediaFile() | MediaChunk() | MediaLost():
                self._media.received(frontend, message, data)
            case ExpectPrompt():
                self._expect(frontend, message, now)
            case ForgetPrompt():
                self._expecting.forgotten(frontend, message)
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
                self._refuse(frontend.session, "Hello was sent twice")

    def _set_paused(self, frontend: FrontendSession, message: SetPaused) -> None:
        self._state.paused = message.paused
        log.info("paused" if message.paused else "resumed", by=frontend.name, abort=message.abort)
        if message.abort:
            self._abort_all()

    def _put_to_sleep(self, frontend: FrontendSession, message: PutToSleep) -> None:
        log.info("going to sleep", by=frontend.name, level=message.level, abort=message.abort)
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
            self._refuse(frontend.session, "a call to the workers exceeds its limits")
            return
        log.info("a method of the workers is called", method=message.method, by=frontend.name)
        self._state.calls.add(frontend.session, message, now)

    def _name_adapters(self, frontend: FrontendSession, message: NameAdapters) -> None:
        try:
            self._adapters.named(message)
        except InvalidRequest as error:
            self._refuse(frontend.session, error.message)

    def _expect(self, frontend: FrontendSession, message: ExpectPrompt, now: float) -> None:
        try:
            self._expecting.expected(frontend, message, now)
        except InvalidRequest as error:
            self._refuse(frontend.session, error.message)

    def _finish(self, frontend: FrontendSession, finish: Finish) -> None:
        reader = frontend.readers.get(finish.request)
        if reader is not None:
            self._adoption.finish(reader, finish.sequence)
            return
        request = frontend.requests.get(finish.request)
        sequence = request.sequences.get(finish.sequence) if request is not None else None
        if request is not None and sequence is not None and not sequence.finished:
            self._adoption.stop(request, finish.sequence)

    def _abort(self, frontend: FrontendSession, abort: Abort, now: float) -> None:
        request, reader = frontend.requests.get(abort.request), frontend.readers.get(abort.request)
        if abort.handed_over and (request is not None or reader is not None):
            self._state.drain.taken_away(now)
        if reader is not None:
            aborted = SequenceState.FINISHED_ABORTED
            self._adoption.leave(
                reader, aborted, now, handed_over=abort.handed_over, withdrawn=not abort.kept
            )
        if request is None:
            return
        request.handed_over |= abort.handed_over
        if not (abort.kept and self._adoption.orphan(request, now)):
            self._finisher.close(request)


class ExpectHandler:
    """Enters them in the book, from which `Prefetcher` fetches."""

    def __init__(self, state: CoreState) -> None:
        self._state = state

    def expected(self, frontend: FrontendSession, message: ExpectPrompt, now: float) -> None:
        """Raises InvalidRequest for what can be no prompt."""
        state, tokens = self._state, message.prompt_token_ids
        vocab, most = state.facts.model.config.vocab_size, state.facts.max_model_len
        if not 0 < len(tokens) <= most or not 0 <= min(tokens) <= max(tokens) < vocab:
            raise InvalidRequest(
                f"a prompt that is expected has 1 to {most} tokens below {vocab}; one of"
                f" {len(tokens)} isn't so"
            )
        if state.draining or not state.shares_prefixes:
            return
        root = prefix_root(message.tenant, message.cache_salt, message.adapter)
        keys = list(prompt_keys(root, tokens, state.facts.block_size))
        groups = len(state.scheduling.kv_groups)
        state.expected_prompts.add(frontend.session, message.number, keys, groups, now)

    def forgotten(self, frontend: FrontendSession, message: ForgetPrompt) -> None:
        self._state.expected_prompts.forget(frontend.session, message.number)
