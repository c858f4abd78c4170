"""Which sequences of a step may have tokens drafted, and how many there is room for."""

from __future__ import annotations

from penstock_engine.kv.table import joined
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.scheduler.starts import SpareRoom
from penstock_engine.scheduler.state import SchedulerState
from penstock_engine.speculation.draft_policy import MAX_DRAFTS, Offer
from penstock_engine.speculation.history import SequenceDrafts

MAX_CLAIMED = 127
"""Most tokens of a claimed output in a step: with the one before them, as many rows as workers have
logits of (`Drafting`)."""


class Drafter:
    """Gives out what a step has left, once all else has got what it wants.

    So drafts are never a reason to preempt or to refuse anybody.  They take spare tokens of the
    budget, and blocks as long as no sequence waits for some and enough are left for those that run.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._room = SpareRoom(state)

    def allot(self, builder: StepBuilder) -> None:
        """Adds drafts to what the step computes."""
        if builder.alone or not builder.left:
            return
        slots: list[int] = []
        offers: list[Offer] = []
        for slot, (sequence, _, end, _) in list(builder.items.items()):
            if sequence.request.claimed:
                self._draft_claimed(slot, builder)
                continue
            drafts = sequence.drafts
            if drafts is None or not drafts.hoped or builder.starts(sequence):
                continue
            # While a step is under way for it, what is known of its proposals is one step old.
            proposed = drafts.hoped if sequence.progress.in_flight else drafts.proposed
            most = self._most(sequence, end, min(proposed, MAX_DRAFTS))
            if most > 0:
                slots.append(slot)
                offers.append(Offer(drafts, most))
        if not offers:
            return
        counts = self._state.draft_policy.choose(offers, builder.size(), builder.left)
        for slot, count in zip(slots, counts, strict=True):
            if count:
                self._draft(slot, count, builder)

    def least_proposed(self, builder: StepBuilder) -> int:
        """Drafts that the worker could propose so that a step without any had better end. See
        Plan."""
        known = [item[0].drafts or SequenceDrafts() for item in builder.items.values()]
        return self._state.draft_policy.least_proposed(known, builder.size(), builder.left)

    def wants_proposed(self, builder: StepBuilder) -> bool:
        """Whether it is worth the worker's time to say what could be drafted after the step."""
        return self._state.draft_policy.wants_proposed(len(builder.items))

    def rests(self, builder: StepBuilder) -> bool:
        """Whether a draft model or head had better not follow the step's sequences. See Plan."""
        return self._state.draft_policy.upkeep.rests(len(builder.items))

    def _most(self, sequence: Sequence, end: int, proposed: int) -> int:
        """Drafts that a sequence may have if its tokens up to `end` are computed: the one that is
        sampled, and all of them, still have to be within its bounds."""
        progress = sequence.progress
        if end != progress.expected:
            return 0
        longest = min(sequence.most_tokens, self._state.longest)
        return min(proposed, longest - end - progress.drafts - 1)

    def _draft_claimed(self, slot: int, builder: StepBuilder) -> None:
        """Gives a slot as much of its claimed output as fits, without learning whether that
        pays."""
        sequence, _, end, _ = builder.items[slot]
        request = sequence.request
        if builder.starts(sequence) and sequence.reports_prompt:
            return  # Its prompt's log-probabilities are computed apart from what is sampled.
        rest = len(request.prediction) - (end - len(request.prompt_token_ids))
        most = self._most(sequence, end, min(rest, MAX_CLAIMED, builder.left))
        if most > 0:
            self._draft(slot, most, builder)

    def _draft(self, slot: int, count: int, builder: StepBuilder) -> None:
        """Gives a slot at most `count` drafts, as far as there are blocks."""
        sequence, _, end, new_blocks = builder.items[slot]
        table, cache = sequence.table, self._state.cache
        if table is None or cache is None:
            return
        end += sequence.progress.drafts
        most = min(end + count, self._room.tokens(table, builder))
        count = most - end
        if count > 0:
            more = table.grow(cache, most)
            if not builder.starts(sequence):  # Else the worker gets the whole table.
                new_blocks = joined(new_blocks, more, len(table.held))
            builder.draft(slot, count, new_blocks)


class NoDrafter(Drafter):
    """Drafts nothing, for models that can't be served with drafts."""

    def allot(self, builder: StepBuilder) -> None:
        """Adds nothing."""

    def least_proposed(self, builder: StepBuilder) -> int:
        """Returns 0: nothing is proposed."""
        return 0

    def wants_proposed(self, builder: StepBuilder) -> bool:
        """Returns False: the worker has no drafts to report."""
        return False
