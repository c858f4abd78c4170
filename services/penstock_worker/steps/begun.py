"""A step that has been started, until its result is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan
from penstock_worker.batch.slots import Slot
from penstock_worker.steps.kinds import Queued
from penstock_worker.steps.timeline import StepTimeline


class BegunStep(Generic[Queued]):
    """A step that was queued on the device. Results have to be asked for in the order of the
    plans."""

    def __init__(
        self,
        plan: Plan,
        slots: list[Slot],
        queued: list[Queued],
        timeline: StepTimeline,
        collect: Callable[[BegunStep[Queued]], None],
        *,
        encode_seconds: float = 0.0,
        known: dict[int, SlotResult] | None = None,
    ) -> None:
        """`slots` are those of the plan's works, as they were when the step was started. `collect`
        settles this step and those before it, which sets their `outcome`. `encode_seconds` is how
        long media were encoded. `known`: the results by slot, if the works are settled already."""
        self.plan = plan
        self.slots = slots
        self.queued = queued
        self.timeline = timeline
        self.encode_seconds = encode_seconds
        self.known = known
        self.outcome: Result | None = None
        self._collect = collect

    def done(self) -> bool:
        """Returns whether `result` would return or raise without waiting for the device."""
        if self.outcome is not None:
            return True
        try:
            return self.timeline.done()
        except Exception:
            return True  # `result` will raise the error.

    def result(self) -> Result:
        """Waits for the step and returns its result. Raises StepLost."""
        if self.outcome is None:
            self._collect(self)
        if self.outcome is None:
            raise RuntimeError(f"step {self.plan.step} was dropped")
        return self.outcome
