"""Selects the works of a plan that are computed, and builds the answer to the plan."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.process.memory import is_memory_shortage
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.slots import PlanError, Slot, Slots


class StepOrder:
    """Checks that plans arrive in order. Steps are numbered from 1 in each session."""

    def __init__(self) -> None:
        self._last_step = 0

    def reset(self) -> None:
        """Starts a new session."""
        self._last_step = 0

    def check(self, plan: Plan) -> None:
        """Raises PlanError for a plan that doesn't follow the last one."""
        if plan.follows != self._last_step or plan.step <= plan.follows:
            raise PlanError(
                f"step {plan.step} follows {plan.follows}; the last step here is {self._last_step}"
            )

    def take(self, plan: Plan) -> None:
        """Records that the plan's changes have been applied."""
        self._last_step = plan.step


def computable(plan: Plan, slots: Slots, *, together: bool) -> list[SlotWork]:
    """Returns the works of slots that haven't failed.

    With several ranks (`together`), all of them must choose the same works, but each learns of a
    failure at its own time, or never. So they go by what all of them know when they reach the step:
    after a failure that was noticed, the slot expects no further token, and its later works reach
    beyond its tokens.
    """
    pairs = zip(plan.work, slots.of(plan.work), strict=True)
    if together:
        return [work for work, slot in pairs if work.start + work.count <= len(slot.token_ids)]
    return [work for work, slot in pairs if slot.failed is None]


def failure(error: Exception) -> str:
    """Returns the error text that is reported for a slot."""
    if is_memory_shortage(error):
        return "the worker has no memory left for this request"
    return f"{type(error).__name__}: {error}"


def answer(
    plan: Plan,
    outcomes: dict[int, SlotResult],
    slots: Sequence[Slot],
    seconds: float,
    encode_seconds: float = 0.0,
    idle_seconds: float = 0.0,
    upkeep_seconds: float = 0.0,
) -> Result:
    """Returns the step's Result: one SlotResult for each work, in order.

    `outcomes`: results of the works that were computed, by slot; the other slots have failed.
    `slots`: of all works.
    `seconds`: duration of the computation; `encode_seconds`: of that, for media; for `idle_seconds`
    and `upkeep_seconds` see Result.
    """
    results = [
        outcomes.get(work.slot) or SlotResult(work.slot, error=slot.failed)
        for work, slot in zip(plan.work, slots, strict=True)
    ]
    return Result(
        plan.step,
        results,
        compute_seconds=seconds,
        encode_seconds=encode_seconds,
        idle_seconds=idle_seconds,
        upkeep_seconds=upkeep_seconds,
    )
