"""What a settled step tells: how its time is shared out among the sequences that it served, and
what steps to come cost."""

from __future__ import annotations

from penstock.protocol.from_worker import Result, SlotResult
from penstock_engine.policies.forecast import StepCostForecast
from penstock_engine.policies.policy import Policy
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.step_in_flight import StepInFlight
from penstock_engine.request.timeline import Clock
from penstock_engine.speculation.draft_policy import DraftPolicy
from penstock_engine.speculation.history import SequenceDrafts


class StepClock:
    """Times the oldest step in flight.

    A step begins when it is sent, or when the one before it is settled, if that is later: so the
    steps' times add up to the time in which there were any.
    """

    __slots__ = ("_begun", "_clock", "_in_flight")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = 0.0
        self._in_flight = 0

    def planned(self) -> None:
        """A step has been sent."""
        if not self._in_flight:
            self._begun = self._clock.now
        self._in_flight += 1

    def settled(self, step: StepInFlight, seconds: float) -> float:
        """The step's own time, in seconds. Call it when a result has come, before it is applied.

        seconds: what the worker says that it took; each sequence's share of them goes by its
        tokens.
        """
        now = self._clock.now
        whole = now - self._begun
        # Below zero for a second result that came in one turn with the first, whose gap it evens.
        gap = whole - seconds
        self._begun = now
        self._in_flight -= 1
        if self._clock.watched:
            self._share_out(step, seconds, gap)
        return whole

    def _share_out(self, step: StepInFlight, seconds: float, gap: float) -> None:
        each = seconds / max(step.tokens, 1)
        for sequence, end, samples in step.items:
            timeline = sequence.timeline
            if timeline is None:
                continue
            timeline.steps += 1
            timeline.compute += seconds
            timeline.dispatch += gap
            drafts = step.drafts.get(sequence.slot, 0) if sequence.slot is not None else 0
            progress = sequence.progress
            timeline.share += each * (end + progress.kept - progress.computed + drafts)
            if samples and not timeline.tokens_began:
                timeline.tokens_began = self._clock.now

    def forget(self) -> None:
        """The worker is gone, and its steps with it."""
        self._in_flight = 0


class StepLessons:
    """Passes a settled step to everything that learns from it."""

    def __init__(self, policy: Policy, cost: StepCostForecast, drafts: DraftPolicy) -> None:
        self._policy = policy
        self._cost = cost
        self._drafts = drafts
        self._after_extra_steps = False
        """The step before had extra steps, so that this one was not sent ahead."""

    def settled(self, step: StepInFlight, result: Result, gap: float) -> None:
        """gap: seconds that it took beyond what the worker computed."""
        if not step.tokens or (step.media.encodes and not result.encode_seconds):
            return  # It encoded, and the worker doesn't know its parts.
        passes = step.passes(result)
        upkeep = result.upkeep_seconds / passes
        seconds = max(result.compute_seconds - result.encode_seconds, 0.0) / passes
        drafted = kept = 0
        tokens = step.tokens
        if step.drafts:
            drafted = sum(outcome.drafted for outcome in result.slots)
            kept = sum(len(outcome.more) for outcome in result.slots)
            tokens += drafted - sum(step.drafts.values())
        self._cost.observe(tokens, seconds)
        self._policy.pace.observe(step.decodes + drafted, tokens, seconds)
        fitted = self._cost.fit()
        each = 0.0 if fitted is None else fitted[1]
        if seconds > 0.0:
            # The worker may have waited for a request, too, which is not this step's.
            wait = min(result.idle_seconds, max(gap, 0.0))
            if step.extra_steps:
                self._drafts.waited(wait, early=_ended_for_proposals(step, result, passes))
            if step.extra_steps or not self._after_extra_steps:
                seconds += wait / passes
            seconds = max(seconds - upkeep, 0.1 * seconds)
        self._after_extra_steps = step.extra_steps > 0
        alone = not step.extra_steps
        self._drafts.settled(
            step.size(),
            drafted,
            kept,
            seconds,
            each=each,
            passes=passes,
            alone=alone,
            upkeep=upkeep,
            sequences=len(step.items),
        )

    def sampled(self, step: StepInFlight, sequence: Sequence, outcome: SlotResult) -> None:
        """What was drafted for a sequence counts for its tenant, and for what is drafted next. To
        be called for those that have been drafted for, or could be."""
        drafted, kept, drafts = outcome.drafted, len(outcome.more), sequence.drafts
        if kept and not drafted:
            self._policy.charge(sequence, 0, kept, 0)  # Tokens that the step went on to.
        if drafts is None:
            if not (outcome.proposed or drafted):
                return
            drafts = sequence.drafts = SequenceDrafts(_kind(sequence.request))
        if step.wants_proposed:
            drafts.propose(outcome.proposed)
        if drafted:
            self._drafts.observe(drafts, drafted, kept)
            self._policy.charge(sequence, drafted - kept, kept, 0)
        else:
            self._drafts.undrafted(drafts, outcome.guessed)
            for right in outcome.more_guessed:
                self._drafts.undrafted(drafts, right)


def _kind(request: Request) -> bytes:
    """Texts of one tenant, with a grammar or without, and with a prediction or without."""
    return request.draft_scope + bytes((request.grammar is not None, len(request.prediction) > 0))


def _ended_for_proposals(step: StepInFlight, result: Result, passes: int) -> bool:
    proposed = sum(outcome.proposed for outcome in result.slots)
    return passes <= step.extra_steps and 0 < step.least_proposed <= proposed
