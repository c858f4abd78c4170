"""What a settled step tells of those to come."""

from __future__ import annotations

from penstock.protocol.from_worker import Result, SlotResult
from penstock_engine.policies.forecast import StepCostForecast
from penstock_engine.policies.policy import Policy
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_in_flight import StepInFlight
from penstock_engine.speculation.draft_policy import DraftPolicy
from penstock_engine.speculation.history import SequenceDrafts


class StepLessons:
    """Hands it to whoever learns from it."""

    def __init__(self, policy: Policy, cost: StepCostForecast, drafts: DraftPolicy) -> None:
        self._policy = policy
        self._cost = cost
        self._drafts = drafts

    def settled(self, step: StepInFlight, result: Result, gap: float) -> None:
        """gap: seconds that it took beyond what the worker computed."""
        if not step.tokens or (step.media.encodes and not result.encode_seconds):
            return  # It encoded, and the worker doesn't know its parts.
        passes = step.passes(result)
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
            seconds += wait / passes
            if step.further:
                self._drafts.waited(wait)
        self._drafts.settled(step.size(), drafted, kept, seconds, each=each)

    def sampled(self, step: StepInFlight, sequence: Sequence, outcome: SlotResult) -> None:
        """What was drafted for a sequence counts for its tenant, and for what is drafted next. To
        be called for those that have been drafted for, or could be."""
        drafted, kept, drafts = outcome.drafted, len(outcome.more), sequence.drafts
        if kept and not drafted:
            self._policy.charge(sequence, 0, kept, 0)  # Tokens that the step went on to.
        if drafts is None:
            if not outcome.proposed:
                return
            drafts = sequence.drafts = SequenceDrafts()
        if step.looks:
            drafts.propose(outcome.proposed)
        if drafted:
            self._drafts.observe(drafts, drafted, kept)
            self._policy.charge(sequence, drafted - kept, kept, 0)
        else:
            self._drafts.undrafted(drafts, outcome.guessed)
            for right in outcome.more_guessed:
                self._drafts.undrafted(drafts, right)
