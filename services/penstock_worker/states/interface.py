"""What a kind of step asks of the states of its sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.protocol.to_worker import Plan, SlotWork


class States(Protocol):
    """The states of all slots in all recurrent layers."""

    def take(self, plan: Plan) -> None:
        """Called before a plan is computed, when its blocks have been copied: states of sequences
        that are admitted are loaded, or become zero. Raises PlanError."""

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        """Called when works of the latest plan have failed, in part or as a whole, before they are
        computed once more."""

    def clear(self) -> None:
        """Forgets all sequences."""


class Stateless:
    """Of a model without recurrent layers."""

    def take(self, plan: Plan) -> None:
        """There is nothing to load."""

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        """To compute a token once more changes nothing."""

    def clear(self) -> None:
        """There is nothing to forget."""


STATELESS: States = Stateless()
