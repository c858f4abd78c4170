"""Results of steps: what they did to each sequence, and what front ends are sent of it."""

from __future__ import annotations

import msgspec

from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_frontend import SequenceOutput
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.handlers.pooling import verify_alignments, verify_vectors
from penstock_engine.request.request import Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.request.step_in_flight import StepInFlight
from penstock_engine.request.stopping import check_stop, until_stop


class ResultHandler:
    """Settles the steps in flight, one after another."""

    def __init__(self, state: CoreState, finisher: Finisher) -> None:
        self._state = state
        self._finisher = finisher
        self._pooling = state.facts.pooling
        self._aligned_rows = state.facts.aligned_rows
        self._vocab_size = state.facts.model.config.vocab_size
        self.was_quiet = True
        """Whether the step that was settled last has brought tokens of sequences that go on, and
        nothing else."""

    def take(self, rank: int, reported: Result, now: float) -> bool:
        """Applies the oldest step in flight once every rank has reported it. Returns whether it was
        applied; False: other ranks have to report first.

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
        elif self._aligned_rows:
            verify_alignments(step, result, self._aligned_rows)
        seconds = result.compute_seconds
        whole = state.step_clock.settled(step, seconds)
        tokens = step.tokens
        if step.drafts:
            tokens += self._count_drafts(step, result)
            result = self._until_stops(step, result)
        elif step.extra_steps:
            tokens += sum(len(outcome.more) for outcome in result.slots)
            result = self._until_stops(step, result)
        quiet = self._apply(result, whole - seconds)
        self.was_quiet = quiet and not state.kept_answers.is_over
        workers.compute_seconds += seconds
        workers.tokens_computed += tokens
        workers.progressed(now)
        if not step.internal:
            state.counts.settled(tokens, len(step.items), whole, seconds)
        state.counts.recovered(now)
        return True

    def _count_drafts(self, step: StepInFlight, result: Result) -> int:
        """How many more tokens were computed than the plan had room for: less than none."""
        drafted = 0
        for outcome in result.slots:
            if outcome.drafted:
                drafted += outcome.drafted
                self._state.counts.drafted(outcome.drafted, len(outcome.more))
        return drafted - sum(step.drafts.values())

    def _until_stops(self, step: StepInFlight, result: Result) -> Result:
        """The result without tokens after the end of their sequence."""
        limit = self._state.context_limit.tokens
        slots = [
            until_stop(sequence, outcome, limit) if outcome.more else outcome
            for (sequence, _, _), outcome in zip(step.items, result.slots, strict=True)
        ]
        return msgspec.structs.replace(result, slots=slots)

    def _apply(self, result: Result, gap: float) -> bool:
        """Hands out what a step gave, sequence by sequence, and ends those that have ended. Returns
        whether none has. gap: seconds that it took beyond what the worker computed."""
        frontends, generated, quiet = self._state.frontends, 0, True
        limit = self._state.context_limit.tokens
        for sequence, outcome in self._state.scheduling.apply(result, gap):
            if sequence.request.internal and self._state.audits is not None:
                self._state.audits.take(sequence, outcome)
                quiet = False
                continue
            if outcome.error is not None:
                self._fail(sequence, outcome)
                quiet = False
                continue
            tokens = outcome.tokens
            generated += len(tokens)
            logprobs = None
            if outcome.logprobs is not None:
                logprobs = [outcome.logprobs, *(outcome.more_logprobs or ())]
            if sequence.trail is not None:
                logprobs = sequence.trail.take(logprobs)
            if sequence.timeline is not None:
                sequence.timeline.gained(outcome.drafted, len(outcome.more))
            prompt_logprobs = outcome.prompt_logprobs
            end = check_stop(sequence, limit)
            if end is not None:
                quiet = False
                self._finisher.end(
                    sequence,
                    end[0],
                    tokens=tokens,
                    logprobs=logprobs,
                    stop_token=end[1],
                    prompt_logprobs=prompt_logprobs,
                    vectors=outcome.vectors,
                    drafted=outcome.drafted,
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
                    drafted=outcome.drafted,
                )
                frontend.give(request, output)
            sequence.delivered = len(sequence.emitted)
        self._state.workers.tokens_generated += generated
        return quiet

    def _fail(self, sequence: Sequence, outcome: SlotResult) -> None:
        self._finisher.end(
            sequence,
            SequenceState.FINISHED_FAILED,
            error=outcome.error,
            error_code=outcome.error_code,
        )
