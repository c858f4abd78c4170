"""Who drafts tokens, and the drafts of one launch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from penstock.process import logs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import FetchKV, Plan, SlotWork
from penstock_worker.batch.inputs import NO_DRAFTS, Drafts
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.steps.feature import StepFeature


class Proposer:
    """Guesses what comes next in each slot; a subclass says what.

    A guess changes no output, but its rows are computed: so it has to be the same on every tensor
    rank, and depends on nothing but the slots' tokens and the order of plans.
    """

    def take(self, plan: Plan) -> None:
        """Called before a plan is computed, when the slots have followed it and its blocks have
        been copied."""

    def fetched(self, message: FetchKV) -> None:
        """Called when blocks have been copied, and others are going to be filled, without a
        plan."""

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        """Returns for each work what it expects to follow the slot's tokens: at most `work.draft`
        ids, none where the work doesn't reach the slot's end.

        Called once for each launch, before the model's pass, with all works, so also those that are
        to have no draft. The newest token of a slot that has `draft` is known. May be called from
        several threads at once, with works that have no slot in common.
        """
        return [[] for _ in scheduled]

    def proposed(self, slot: int) -> int:
        """Returns how many ids `propose` could give for this slot now (SlotResult.proposed).
        Called when the slot's tokens of a step are known, and quick."""
        return 0

    def first(self, slot: int) -> int | None:
        """Returns the first of the ids that `proposed` has counted for this slot before its newest
        token; None if there were none, or if they are not known before they are computed."""
        return None

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        """Called when a launch has failed, before its works are launched once more."""

    def upkeep_seconds(self) -> float:
        """Returns how long `propose` has kept up with sequences that it drafted nothing for, since
        this was called before."""
        return 0.0

    def reset(self) -> None:
        """Forgets all sequences, because a new session with the engine core begins."""


def proposed_otherwise(
    proposer: Proposer, scheduled: Sequence[SlotWork], found: list[list[int]]
) -> list[list[int]]:
    """Returns what was found for each work, and this proposer's drafts for those without any. It
    gets all works, but isn't called twice: some proposers compute."""
    rest = [
        msgspec.structs.replace(work, draft=0) if ids else work
        for work, ids in zip(scheduled, found, strict=True)
    ]
    return [ids or other for ids, other in zip(found, proposer.propose(rest), strict=True)]


log = logs.get(__name__)

ROWS = 128
"""Rows of logits that a launch may have where fewer slots than that are served."""


class Drafting(StepFeature):
    """Asks a proposer, and takes of its answer what may be computed."""

    name = "drafting"

    def __init__(
        self,
        slots: Slots,
        proposer: Proposer,
        *,
        ends: Collection[int] = (),
        together: bool = False,
    ) -> None:
        """`ends`: ids at which sequences mostly end. `together`: other ranks draft the same."""
        self.proposer = proposer
        self._slots = slots
        self._ends = frozenset(ends)
        self._together = together
        self.wants_proposed = True
        """Whether the latest plan's results are to say what could be drafted next."""
        self._claims: dict[int, list[int]] = {}
        """Outputs that somebody claims, by slot."""

    def take(self, plan: Plan) -> None:
        self.wants_proposed = plan.wants_proposed
        for slot in plan.released:
            self._claims.pop(slot, None)
        for new in plan.admitted:
            like = [] if new.like is None else self._claims.get(new.like, [])
            if claim := new.prediction if new.claimed else like:
                self._claims[new.slot] = claim
        self.proposer.take(plan)

    def fetched(self, message: FetchKV) -> None:
        self.proposer.fetched(message)

    def upkeep_seconds(self) -> float:
        return self.proposer.upkeep_seconds()

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        self.proposer.undo(scheduled)

    def reset(self) -> None:
        self._claims.clear()
        self.proposer.reset()

    def drafts(self, scheduled: Sequence[SlotWork]) -> Drafts:
        """Returns what is computed after these works. A failure of the proposer costs its drafts,
        and no slot anything."""
        try:
            proposed = self._proposed(scheduled)
        except Exception:
            if self._together:
                raise  # The other ranks compute theirs.
            log.error("nothing can be drafted", exception=True, slots=len(scheduled))
            return NO_DRAFTS
        return self._fitting(scheduled, proposed)

    def hinted(
        self,
        results: dict[int, SlotResult],
        launched: Callable[[], Mapping[int, Slot]],
        *,
        wants_proposed: bool = True,
    ) -> dict[int, SlotResult]:
        """Adds what can be said of the next drafts to the results of slots that have tokens and are
        there still. `launched` returns the slots that were computed, by number; `wants_proposed`:
        whether anything new is to be looked up for it."""
        slots = launched()
        return {
            number: self._hint(result, wants_proposed=wants_proposed)
            if result.token is not None and self._slots.holds(number, slots[number])
            else result
            for number, result in results.items()
        }

    def _hint(self, result: SlotResult, *, wants_proposed: bool) -> SlotResult:
        try:
            first = None if result.drafted else self.proposer.first(result.slot)
            guessed = None if first is None else first == result.token
            proposed = self.proposer.proposed(result.slot) if wants_proposed else 0
            if guessed is None and not proposed:
                return result
            return msgspec.structs.replace(result, proposed=proposed, guessed=guessed)
        except Exception:
            log.error("nothing can be proposed", exception=True, slot=result.slot)
            return result

    def _fitting(self, scheduled: Sequence[SlotWork], proposed: list[list[int]]) -> Drafts:
        # Logits take memory: half a megabyte for each row of a large vocabulary.
        room = max(ROWS, self._slots.bounds.slots) - len(scheduled)
        drafts: dict[int, Sequence[int]] = {}
        for work, ids in zip(scheduled, proposed, strict=True):
            ends = work.start + work.count == len(self._slots[work.slot].token_ids)
            fitting = self._likely(work.slot, ids)[: max(0, min(work.draft, room))]
            if fitting and ends:
                drafts[work.slot] = fitting
                room -= len(fitting)
        return drafts

    def _proposed(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        if not self._claims:
            return self.proposer.propose(scheduled)
        claimed = [self._claimed(work) for work in scheduled]
        return proposed_otherwise(self.proposer, scheduled, claimed)

    def _claimed(self, work: SlotWork) -> list[int]:
        """Returns what the output that somebody claims goes on with: it is to be checked, whatever
        else is more likely."""
        slot, claim = self._slots[work.slot], self._claims.get(work.slot, [])
        emitted = len(slot.token_ids) - slot.num_prompt
        return claim[emitted : emitted + work.draft]

    def _likely(self, slot: int, ids: list[int]) -> list[int]:
        """Returns the ids before the first one after which nothing would be wanted; a claimed
        output may go on after such a token. Tokens of a request's prediction may be none of the
        model's."""
        ends = () if slot in self._claims else self._ends
        vocab = self._slots.bounds.vocab
        for at, token in enumerate(ids):
            if token in ends or not 0 <= token < vocab:
                return ids[:at]
        return ids
