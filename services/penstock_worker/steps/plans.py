"""Which works of a plan are computed, and how the plan is answered."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.slots import PlanError, Slot, Slots


class StepOrder:
    """Steps follow one another, from 0 in each session."""

    def __init__(self) -> None:
        self._last_step = 0

    def reset(self) -> None:
        """The next step is the first one of a session."""
        self._last_step = 0

    def check(self, plan: Plan) -> None:
        """Raises PlanError for a plan that doesn't follow what came before."""
        if plan.follows != self._last_step or plan.step <= plan.follows:
            raise PlanError(
                f"step {plan.step} follows {plan.follows}; the last step here is {self._last_step}"
            )

    def take(self, plan: Plan) -> None:
        """What comes before its computing is done."""
        self._last_step = plan.step


def computable(plan: Plan, slots: Slots, *, together: bool) -> list[SlotWork]:
    """The works of slots that haven't failed.

    together: as far as all ranks know when they come to the step.  They hear of a failure each in
    its own time, or never; where it was known, the slot expects no further token.
    """
    pairs = zip(plan.work, slots.of(plan.work), strict=True)
    if together:
        return [work for work, slot in pairs if work.start + work.count <= len(slot.token_ids)]
    return [work for work, slot in pairs if slot.failed is None]


def failure(error: Exception) -> str:
    """What is said of a slot's failure."""
    return f"{type(error).__name__}: {error}"


def answer(
    plan: Plan, outcomes: dict[int, SlotResult], slots: Sequence[Slot], seconds: float
) -> Result:
    """The step's Result: one SlotResult for each work, in order.

    outcomes: of the works that were computed, by slot; the others have failed.  slots: of all
    works.  seconds: what computing took.
    """
    results = [
        outcomes.get(work.slot) or SlotResult(work.slot, error=slot.failed)
        for work, slot in zip(plan.work, slots, strict=True)
    ]
    return Result(plan.step, results, compute_seconds=seconds)
