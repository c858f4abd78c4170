"""A step from its beginning to its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_worker.batch.slots import Slot
from penstock_worker.steps.kinds import Queued
from penstock_worker.steps.timeline import StepTimeline


class BegunStep(Generic[Queued]):
    """Steps are asked for their results in the order of their plans."""

    def __init__(
        self,
        plan: Plan,
        slots: list[Slot],
        queued: list[Queued],
        timeline: StepTimeline,
        collect: Callable[[BegunStep[Queued]], None],
    ) -> None:
        self.plan = plan
        self.slots = slots  # Of the plan's works, as they were when it was begun.
        self.queued = queued
        self.timeline = timeline
        self.outcome: Result | None = None
        self._collect = collect  # Gives this step, and those before it, their `outcome`.

    def done(self) -> bool:
        """Whether `result` would return, or raise, without waiting for the device."""
        if self.outcome is not None:
            return True
        try:
            return self.timeline.done()
        except Exception:
            return True  # `result` says what has happened.

    def result(self) -> Result:
        """Waits for it. Raises StepLost."""
        if self.outcome is None:
            self._collect(self)
        if self.outcome is None:
            raise RuntimeError(f"step {self.plan.step} was dropped")
        return self.outcome
