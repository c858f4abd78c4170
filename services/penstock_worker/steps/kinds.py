"""What a kind of model adds to a step: generating text, a stage of it, or pooling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.block_copies import Copies
from penstock_worker.batch.slots import Slots
from penstock_worker.grammar import SlotGrammars
from penstock_worker.steps.guard import Guard
from penstock_worker.steps.timeline import StepTimeline

Queued = TypeVar("Queued")
"""What a kind keeps of works that it has queued together, until their results are asked for."""


class Computer(Protocol):
    """A Forward, or a pooling model's Body."""

    @property
    def layers_done(self) -> int: ...

    def cancel(self) -> None: ...


@dataclass(frozen=True)
class StepStart:
    """What a kind may use of the step that it is queueing."""

    timeline: StepTimeline
    settle_earlier: Callable[[], None]
    """Waits for the steps before this one, and brings the slots level with them."""


class StepKind(ABC, Generic[Queued]):
    """A kind queues works, and later says what came of them."""

    together = False
    """Whether other ranks compute the same steps.  Then nothing is tried again, as they wouldn't
    follow: what fails ends the group.  And a slot that has failed is computed like any other until
    it is released: others may hear of its failure a step later, or never."""

    def __init__(
        self, computer: Computer, slots: Slots, copies: Copies, grammars: SlotGrammars
    ) -> None:
        """computer and copies agree on the number and size of KV blocks."""
        self.slots = slots
        self.grammars = grammars
        self._computer = computer
        self._copies = copies

    @property
    def layers_done(self) -> int:
        """Layers computed, or queued, since the start; readable from another thread."""
        return self._computer.layers_done

    def cancel(self) -> None:
        """The worker leaves: a step that is being computed is given up as soon as may be."""
        self._computer.cancel()

    def reset(self) -> None:
        """Forget every sequence: a new session with the engine begins."""
        self.slots.clear()
        self.grammars.reset()

    def prepare(self, plan: Plan) -> None:
        """Copies blocks, and changes the slots and what follows them. Raises PlanError."""
        self._copies.make(plan.copies)
        self.slots.apply(plan)

    @abstractmethod
    def launch(self, scheduled: list[SlotWork], start: StepStart) -> Queued:
        """Queues these works and lets their slots go ahead of the device. Several threads may be
        in it at once, with works that have no slot in common."""

    def undo(self, scheduled: list[SlotWork], start: StepStart) -> None:
        """`launch` has failed: all is to be as if it had not been tried."""

    def check(self) -> None:
        """Raises where what the device has computed means nothing; asked after waiting for it."""

    @abstractmethod
    def settle(self, queued: Queued, guard: Guard) -> dict[int, SlotResult]:
        """What the works gave, by slot, after waiting for the device; slots that are missing have
        failed. Whatever waits is called by way of the guard."""
