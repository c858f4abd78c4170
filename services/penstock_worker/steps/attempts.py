"""What every runner does with a plan: its order, its shares, and failures that stay where they are.

Threads.  A model that has no threads of its own (the reference) is called from several: a step's
sequences are dealt out, and each thread takes its share through the whole model by itself.  That
may be done because no number depends on what else is in a batch, and it needs one meeting per step
where threads inside torch's operations need thousands: on 2 cores that others use too, waiting for
each other there made steps many times slower, spinning or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import torch

from penstock import logs
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_kernels.reference.tiling import ROW_TILE
from penstock_worker.batch.slots import PlanError, Slot, Slots
from penstock_worker.steps.errors import OutOfDeviceMemory, StepLost

log = logs.get(__name__)

Part = TypeVar("Part")
Compute = Callable[[list[SlotWork]], dict[int, SlotResult]]
"""What some works of one step give, by slot. May be called from several threads at once."""


class Order:
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


class Steps:
    """One runner's steps. threads: that call `compute` at once, each with torch's own count set
    to 1.

    together: other ranks compute the same steps.  Then nothing is tried again, as they wouldn't
    follow: what fails comes out of `execute`, and ends the group.  And a slot that has failed is
    computed like any other until it is released: earlier stages don't hear of it.
    """

    def __init__(self, slots: Slots, threads: int, together: bool = False) -> None:
        self._slots = slots
        self._threads = threads
        self._together = together
        self._pool = ThreadPoolExecutor(threads, "compute", torch.set_num_threads, (1,))
        self._order = Order()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def reset(self) -> None:
        """The next step is the first one of a session."""
        self._order.reset()

    def execute(self, plan: Plan, prepare: Callable[[Plan], None], compute: Compute) -> Result:
        """One SlotResult for each SlotWork, in order. prepare: what comes before computing.

        Raises PlanError for a plan that doesn't fit what came before; any other failure becomes
        errors of the slots that it concerns, unless steps are computed together: then
        OutOfDeviceMemory is raised where that was it, and else what it was.
        """
        self._order.check(plan)
        try:
            return self._execute(plan, prepare, compute)
        except torch.OutOfMemoryError as error:
            said = str(error)
        # Here the failed step's tensors are gone, so their memory can be had.
        raise OutOfDeviceMemory(said)

    def _execute(self, plan: Plan, prepare: Callable[[Plan], None], compute: Compute) -> Result:
        prepare(plan)
        self._order.take(plan)
        works = computable(plan, self._slots, together=self._together)
        outcomes: dict[int, SlotResult] = {}
        for part in chain.from_iterable(self._attempts(works, compute)):
            outcomes |= part
        return answer(plan, outcomes, self._slots.of(plan.work))

    def _attempts(
        self, works: list[SlotWork], compute: Compute
    ) -> Iterable[list[dict[int, SlotResult]]]:
        """What each share gave. One alone is computed by the caller: handing it over and back
        costs more than a tenth of a millisecond."""
        if self._together:
            # As the plan has them: rows go from rank to rank without a name.
            with torch.inference_mode():
                return [[compute(works)]] if works else []
        shares = deal(works, self._threads)
        if len(shares) == 1:
            return [attempt(shares[0], compute, self._slots)]
        return self._pool.map(lambda share: attempt(share, compute, self._slots), shares)


def able(plan: Plan, slots: Slots) -> list[SlotWork]:
    """The works of slots that haven't failed."""
    held = slots.of(plan.work)
    return [work for work, slot in zip(plan.work, held, strict=True) if slot.failed is None]


def computable(plan: Plan, slots: Slots, *, together: bool) -> list[SlotWork]:
    """The works of slots that haven't failed.

    together: as far as all ranks know when they come to the step.  They hear of a failure each in
    its own time, or never; where it was known, the slot expects no further token.
    """
    if not together:
        return able(plan, slots)
    return [
        work
        for work, slot in zip(plan.work, slots.of(plan.work), strict=True)
        if work.start + work.count <= len(slot.tokens)
    ]


def attempt(
    works: list[SlotWork], compute: Callable[[list[SlotWork]], Part], slots: Slots
) -> list[Part]:
    """Compute; if that fails as one batch, one by one, so that only the guilty fail.

    That is sound because computing a token again writes the same bits.  Raises StepLost.
    """
    try:
        with torch.inference_mode():
            return [compute(works)]
    except StepLost:
        raise
    except Exception as error:
        log.error("a step failed", exception=True, slots=len(works))
        if len(works) == 1:
            slots[works[0].slot].failed = failure(error)
            return []
    return [part for work in works for part in attempt([work], compute, slots)]


def failure(error: Exception) -> str:
    """What is said of a slot's failure."""
    return f"{type(error).__name__}: {error}"


def answer(plan: Plan, outcomes: dict[int, SlotResult], slots: Sequence[Slot]) -> Result:
    """outcomes: of the works that were computed, by slot; the others have failed.  slots: of all
    works."""
    results = [
        outcomes.get(work.slot) or SlotResult(work.slot, error=slot.failed)
        for work, slot in zip(plan.work, slots, strict=True)
    ]
    return Result(plan.step, results)


def deal(works: list[SlotWork], hands: int) -> list[list[SlotWork]]:
    """Works in at most `hands` shares of about equal token counts, none of less than a row tile
    unless there is less: a tile costs the same however few of its rows are used."""
    tokens = sum(work.count for work in works)
    hands = min(hands, len(works), -(-tokens // ROW_TILE))
    shares: list[list[SlotWork]] = [[] for _ in range(hands)]
    sizes = [0] * hands
    for work in sorted(works, key=lambda work: -work.count):
        least = sizes.index(min(sizes))
        shares[least].append(work)
        sizes[least] += work.count
    return shares
