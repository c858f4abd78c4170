"""Results of steps: what they did to each sequence, and what front ends are sent of it."""

from __future__ import annotations

from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_frontend import SequenceOutput
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.handlers.pooling import verify_vectors
from penstock_engine.request.request import Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.request.stopping import check_stop


class ResultHandler:
    """Settles the steps in flight, one after another."""

    def __init__(self, state: CoreState, finisher: Finisher) -> None:
        self._state = state
        self._finisher = finisher
        self._pooling = state.facts.pooling
        self._vocab_size = state.facts.model.config.vocab_size

    def take(self, rank: int, reported: Result, now: float) -> bool:
        """Applies the oldest step in flight once every rank has reported it. Whether that was so.

        Raises UnfitResult for a result that doesn't answer that step.
        """
        state = self._state
        scheduling, workers = state.scheduling, state.workers
        result = workers.results.take(rank, reported, scheduling.num_in_flight)
        if result is None:
            return False
        step = scheduling.verify(result, self._vocab_size)
        if self._pooling is not None:
            verify_vectors(step, result, self._pooling)
        seconds = result.compute_seconds
        whole = state.step_clock.settled(step, seconds)
        self._apply(result)
        workers.compute_seconds += seconds
        workers.tokens_computed += step.tokens
        workers.progressed(now)
        state.counts.settled(step.tokens, len(step.items), whole, seconds)
        state.counts.recovered(now)
        return True

    def _apply(self, result: Result) -> None:
        """Hands out what a step gave, sequence by sequence, and ends those that have ended."""
        workers, frontends = self._state.workers, self._state.frontends
        limit = self._state.context_limit.tokens
        for sequence, outcome in self._state.scheduling.apply(result):
            if outcome.error is not None:
                self._fail(sequence, outcome)
                continue
            tokens = [] if outcome.token is None else [outcome.token]
            workers.tokens_generated += len(tokens)
            logprobs = None if outcome.logprobs is None else [outcome.logprobs]
            prompt_logprobs = outcome.prompt_logprobs
            end = check_stop(sequence, limit)
            if end is not None:
                self._finisher.end(
                    sequence,
                    end[0],
                    tokens=tokens,
                    logprobs=logprobs,
                    stop_token=end[1],
                    prompt_logprobs=prompt_logprobs,
                    vectors=outcome.vectors,
                )
                continue
            request = sequence.request
            frontend = frontends.get(request.session)
            if frontend is not None:
                output = SequenceOutput(
                    request.number,
                    sequence.index,
                    tokens,
                    logprobs,
                    cached_tokens=request.take_cached_tokens(),
                    prompt_logprobs=prompt_logprobs,
                )
                frontend.outputs.append(output)
            sequence.delivered = len(sequence.emitted)

    def _fail(self, sequence: Sequence, outcome: SlotResult) -> None:
        self._finisher.end(
            sequence,
            SequenceState.FINISHED_FAILED,
            error=outcome.error,
            error_code=outcome.error_code,
        )
