"""What a kind of step asks of the states of its sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.speculation.drafting import Drafts


class States(Protocol):
    """The states of all slots in all recurrent layers."""

    def take(self, plan: Plan) -> None:
        """Called before a plan is computed, when its blocks have been copied: states of sequences
        that are admitted are loaded, or become zero. Raises PlanError."""

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        """Called when works of the latest plan have failed, in part or as a whole, before they are
        computed once more."""

    def fitting(self, scheduled: Sequence[SlotWork], drafts: Drafts) -> Drafts:
        """Returns those of the drafts after these works after each of which a state can be kept,
        until `keep` is called."""

    def keep(self, number: int, tokens: int) -> None:
        """Called when it is known which of a slot's drafts were right: its states become those of
        so many tokens."""

    def clear(self) -> None:
        """Forgets all sequences."""


class Stateless:
    """The states of a model without recurrent layers: there are none."""

    def take(self, plan: Plan) -> None:
        """Does nothing: there are no states to load."""

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        """Does nothing: to compute a token once more changes no state."""

    def fitting(self, scheduled: Sequence[SlotWork], drafts: Drafts) -> Drafts:
        return drafts

    def keep(self, number: int, tokens: int) -> None:
        """What lies after the tokens is written over."""

    def clear(self) -> None:
        """Does nothing: nothing is kept."""


STATELESS: States = Stateless()
