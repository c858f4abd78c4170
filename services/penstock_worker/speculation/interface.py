"""What a step asks of whoever drafts tokens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.protocol.to_worker import FetchKV, Plan, SlotWork


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

    def reset(self) -> None:
        """Forgets all sequences, because a new session with the engine core begins."""


def proposed_otherwise(
    proposer: Proposer, scheduled: Sequence[SlotWork], found: list[list[int]]
) -> list[list[int]]:
    """Returns what was found for each work, and what this proposer says of those of which nothing
    was. It hears of all works, but isn't asked twice: some proposers compute."""
    rest = [
        msgspec.structs.replace(work, draft=0) if ids else work
        for work, ids in zip(scheduled, found, strict=True)
    ]
    return [ids or other for ids, other in zip(found, proposer.propose(rest), strict=True)]
