"""Drafts the tokens that a grammar leaves no choice about."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.protocol.to_worker import FetchKV, Plan, SlotWork
from penstock_worker.grammar import SlotGrammars
from penstock_worker.speculation.interface import Proposer, proposed_otherwise

WAIT = 0.0005
"""Seconds that a step's hints may wait for grammars, all slots together."""


class ForcedTokens:
    """Proposes what a slot's grammar forces (the keys of a JSON schema, the rest of a word), and
    asks another proposer where it forces nothing.

    The grammar's masks allow other ways to write the same text; the model mostly takes this one.
    What is forced is known when the grammar has followed the newest token, in a thread of its own:
    so ranks that must draft the same can't have this.
    """

    def __init__(self, grammars: SlotGrammars, other: Proposer, most: int) -> None:
        """`most`: ids of a draft."""
        self._grammars = grammars
        self._other = other
        self._most = most
        self._counted: dict[int, int] = {}
        """The first of the ids that `proposed` counted for each slot, where a grammar forced
        them."""

    def take(self, plan: Plan) -> None:
        for slot in plan.released:
            self._counted.pop(slot, None)
        self._other.take(plan)

    def fetched(self, message: FetchKV) -> None:
        self._other.fetched(message)

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        found = [
            self._grammars.forced(work.slot)[: work.draft] if work.draft else []
            for work in scheduled
        ]
        return proposed_otherwise(self._other, scheduled, found)

    def proposed(self, slot: int) -> int:
        held = self._grammars.count
        forced = self._grammars.forced(slot, WAIT / held)[: self._most] if held else []
        if not forced:
            self._counted.pop(slot, None)
            return self._other.proposed(slot)
        self._counted[slot] = forced[0]
        return len(forced)

    def first(self, slot: int) -> int | None:
        counted = self._counted.pop(slot, None)  # There may be no look before the next token.
        return self._other.first(slot) if counted is None else counted

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        self._other.undo(scheduled)

    def reset(self) -> None:
        self._counted.clear()
        self._other.reset()
