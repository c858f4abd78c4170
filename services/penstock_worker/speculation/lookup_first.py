"""Several proposers in order of preference: what was there before costs nothing to look up."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.protocol.to_worker import FetchKV, Plan, SlotWork
from penstock_worker.speculation.interface import Proposer, proposed_otherwise
from penstock_worker.speculation.lookup import LookupProposer


class LookupFirst:
    """Looks drafts up, and has a draft model or a head compute those of which nothing was found."""

    def __init__(self, lookup: LookupProposer, model: Proposer) -> None:
        self._lookup = lookup
        self._model = model

    def take(self, plan: Plan) -> None:
        self._lookup.take(plan)
        self._model.take(plan)

    def fetched(self, message: FetchKV) -> None:
        self._model.fetched(message)

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        return proposed_otherwise(self._model, scheduled, self._lookup.propose(scheduled))

    def proposed(self, slot: int) -> int:
        return self._model.proposed(slot)

    def first(self, slot: int) -> int | None:
        return self._model.first(slot)

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        self._lookup.undo(scheduled)
        self._model.undo(scheduled)

    def reset(self) -> None:
        self._lookup.reset()
        self._model.reset()
