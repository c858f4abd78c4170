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
        # A step that encodes says little of what tokens cost; a worker may not know its parts.
        seconds = max(result.compute_seconds - result.encode_seconds, 0.0)
        drafted = sum(outcome.drafted for outcome in result.slots) if step.drafts else 0
        if step.tokens and (not step.media.encodes or result.encode_seconds):
            tokens = step.tokens - sum(step.drafts.values()) + drafted
            self._cost.observe(tokens, seconds)
            self._policy.pace.observe(step.decodes + drafted, tokens, seconds)
            fitted = self._cost.fit()
            each = 0.0 if fitted is None else fitted[1]
            self._drafts.settled(step.size(), drafted, seconds, gap, behind=step.behind, each=each)
        if step.drafts:
            kept = sum(len(outcome.more) for outcome in result.slots)
            drafting = len(step.drafts)
            self._drafts.account(step.size(), drafting, drafted, kept, followed=step.followed)

    def sampled(self, sequence: Sequence, outcome: SlotResult) -> None:
        """What was drafted for a sequence counts for its tenant, and for what is drafted next."""
        drafted, kept, drafts = outcome.drafted, len(outcome.more), sequence.drafts
        if drafts is None:
            if not outcome.proposed:
                return
            drafts = sequence.drafts = SequenceDrafts()
        drafts.proposed = outcome.proposed
        if drafted:
            self._drafts.observe(drafts, drafted, kept)
            self._policy.charge(sequence, drafted - kept, kept, 0)
        else:
            self._drafts.undrafted(drafts, outcome.guessed)
