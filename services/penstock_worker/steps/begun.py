"""A step of a device, from its beginning to its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_worker.batch.slots import Slot
from penstock_worker.steps.timeline import StepTimeline

Works = TypeVar("Works")
"""Works that were queued together, as the runner has them."""


class BegunStep(Generic[Works]):
    """A PendingStep. slots: of the plan's works, as they were when it was begun.  collect: gives
    this step, and those before it, their `outcome`."""

    def __init__(
        self,
        plan: Plan,
        slots: list[Slot],
        launches: list[Works],
        timeline: StepTimeline,
        collect: Callable[[BegunStep[Works]], None],
    ) -> None:
        self.plan = plan
        self.slots = slots
        self.launches = launches
        self.timeline = timeline
        self.outcome: Result | None = None
        self._collect = collect

    def done(self) -> bool:
        if self.outcome is not None:
            return True
        try:
            return self.timeline.done()
        except Exception:
            return True  # `result` says what has happened.

    def result(self) -> Result:
        if self.outcome is None:
            self._collect(self)
        if self.outcome is None:
            raise RuntimeError(f"step {self.plan.step} was dropped")
        return self.outcome
