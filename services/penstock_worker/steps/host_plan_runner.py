"""What runners that compute while they are asked to have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.slots import Slots
from penstock_worker.grammar import SlotGrammars
from penstock_worker.steps.attempts import Steps
from penstock_worker.steps.errors import Executed


class Computer(Protocol):
    """A Forward, or a pooling model's Body."""

    @property
    def layers_done(self) -> int: ...

    def cancel(self) -> None: ...


class PlanRunner(ABC):
    """A kind says what comes before a step's computing, and what the computing is.

    computer: that the kind computes with.  steps: the order, shares and failures of its steps.
    grammars: of structured output; the session compiles there, the runner follows.
    """

    def __init__(
        self, computer: Computer, slots: Slots, steps: Steps, grammars: SlotGrammars
    ) -> None:
        self._computer = computer
        self._slots = slots
        self._steps = steps
        self.grammars = grammars

    @property
    def layers_done(self) -> int:
        """Layers computed since the start; readable from another thread."""
        return self._computer.layers_done

    def close(self) -> None:
        """End the threads; a step that is being computed is given up as soon as may be."""
        self._computer.cancel()
        self._steps.close()
        self.grammars.close()

    def reset(self) -> None:
        """Forget every sequence: a new session with the engine begins."""
        self._slots.clear()
        self.grammars.reset()
        self._steps.reset()

    def execute(self, plan: Plan) -> Result:
        """One SlotResult for each SlotWork, in order. Changes slots and KV cache.

        Raises PlanError for a plan that doesn't fit what came before; any other failure becomes
        errors of the slots that it concerns, unless steps are computed together.
        """
        return self._steps.execute(plan, self._prepare, self._compute)

    def begin(self, plan: Plan) -> Executed:
        """As `execute`, which it does at once."""
        return Executed(self.execute, plan)

    @abstractmethod
    def _prepare(self, plan: Plan) -> None:
        """Copies blocks, and changes the slots and what follows them. Raises PlanError."""

    @abstractmethod
    def _compute(self, works: list[SlotWork]) -> dict[int, SlotResult]:
        """What some works of the step give, by slot. Several threads may be in it at once."""
