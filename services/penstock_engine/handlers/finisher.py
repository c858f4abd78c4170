"""Ends sequences, and gives out the one terminal output that each accepted sequence gets."""

from __future__ import annotations

from penstock.protocol.common import ErrorCode, TokenLogprobs, Vectors
from penstock.protocol.to_frontend import Pooled, SequenceOutput
from penstock_engine.core_state import CoreState
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import FINISH_REASONS, SequenceState
from penstock_engine.sessions.fault_attribution import MAX_DEATHS, FaultAttribution

POISON = (
    f"an engine or worker died {MAX_DEATHS} times while this request was running; "
    "it is not run again"
)


class Finisher:
    """The only caller of SchedulerState.finish, so that state and outputs can't part."""

    def __init__(self, state: CoreState) -> None:
        self._state = state

    def end(
        self,
        sequence: Sequence,
        state: SequenceState,
        *,
        tokens: list[int] | None = None,
        logprobs: list[TokenLogprobs] | None = None,
        stop_token: int | None = None,
        error: str | None = None,
        error_code: ErrorCode | None = None,
        prompt_logprobs: list[TokenLogprobs] | None = None,
        vectors: Vectors | None = None,
        drafted: int = 0,
    ) -> None:
        """Ends a live sequence, in whatever state it is. tokens, vectors: what its last step
        gave; vectors take the place of the terminal output.  drafted: see SequenceOutput."""
        if sequence.state is SequenceState.WAITING_FOR_GRAMMAR:
            self._state.grammars.unpark(sequence)
        elif sequence.state is SequenceState.WAITING_FOR_REMOTE_KV:
            self._state.remote_kv.unpark(sequence)
        elif sequence.state is SequenceState.WAITING_FOR_ADAPTER:
            self._state.adapters.unpark(sequence)
        self._state.scheduling.finish(sequence, state)
        request = sequence.request
        if self._state.audits is not None:
            self._state.audits.ended(sequence, self._state.clock.now)
        if request.media is not None:
            self._state.media.ended(sequence)
        timeline = None
        if sequence.timeline is not None:
            timeline, sequence.timeline = sequence.timeline.close(), None
        self._state.counts.generated(request.tenant, sequence.num_generated)
        request.open -= 1
        if request.ended:
            self._forget(request, state)
        frontend = self._state.frontends.get(request.session)
        if frontend is None:
            return
        if vectors is not None:
            frontend.reply(Pooled(request.number, vectors, request.take_cached_tokens(), timeline))
            return
        frontend.give(
            request,
            SequenceOutput(
                request.number,
                sequence.index,
                tokens or [],
                logprobs,
                FINISH_REASONS[state],
                stop_token,
                error,
                cached_tokens=request.take_cached_tokens(),
                error_code=error_code,
                timeline=timeline,
                prompt_logprobs=prompt_logprobs,
                drafted=drafted,
            ),
        )

    def end_all(
        self,
        request: Request,
        state: SequenceState,
        *,
        error: str | None = None,
        error_code: ErrorCode | None = None,
    ) -> None:
        """Ends what is live of a request."""
        for sequence in request.sequences.values():
            if not sequence.finished:
                self.end(sequence, state, error=error, error_code=error_code)

    def close(self, request: Request) -> None:
        """Closes a request that no front end waits for any more: it ends, and its place is free."""
        request.closed = True
        self.end_all(request, SequenceState.FINISHED_ABORTED)
        if request.number in self._open_of(request):
            self._forget(request, SequenceState.FINISHED_ABORTED)

    def _open_of(self, request: Request) -> dict[int, Request]:
        frontend = self._state.frontends.get(request.session)
        return {} if frontend is None else frontend.requests

    def _forget(self, request: Request, state: SequenceState) -> None:
        """The last of it has ended."""
        self._state.counts.closed(FINISH_REASONS[state], handed_over=request.handed_over)
        self._state.frontends.ended(request)
        self._state.kept_answers.ended(request, self._state.clock.now)
        self._state.kv_sessions.ended(request)
        self._state.grammars.release(request)
        self._state.adapters.release(request)
        self._open_of(request).pop(request.number, None)
        # They refer to it: without this, its prompt would wait for the garbage collector, which
        # comes by only when some hundred requests have ended.
        request.sequences = {}

    def end_if_poison(self, sequence: Sequence) -> bool:
        """Whether it was: it has seen too many deaths, and has ended as failed."""
        if not FaultAttribution.is_poison(sequence):
            return False
        self.end(sequence, SequenceState.FINISHED_FAILED, error=POISON)
        return True

    def close_session(self, session: bytes) -> None:
        """Removes a front end; its requests have no reader any more."""
        frontend = self._state.frontends.get(session)
        if frontend is not None:
            for request in list(frontend.requests.values()):
                self.close(request)
            self._state.frontends.close(session)
