"""What runners of a device that works behind a queue have in common: how a step is begun, collected
and lost, whatever it computes.

Nothing in `begin` waits for the device, unless the kind has to; a step may be begun while earlier
ones are pending.  `result` settles the steps up to its own, in the order in which they were begun.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Generic

import msgspec
import torch

from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan
from penstock_worker.batch.slots import Slots
from penstock_worker.device.queue import DeviceQueue
from penstock_worker.grammar import SlotGrammars
from penstock_worker.metrics.phases import Phases
from penstock_worker.steps.attempts import Order, answer
from penstock_worker.steps.begun import BegunStep, Works
from penstock_worker.steps.guard import Value, guarded
from penstock_worker.steps.host_plan_runner import Computer
from penstock_worker.steps.timeline import StepTimeline


class DevicePlanRunner(ABC, Generic[Works]):
    """A kind says what comes before a step's computing, what is queued, and what came of it.

    Works: what a kind keeps of works that it has queued together.
    computer, grammars: as PlanRunner's.  phases: are told the device's own seconds.
    """

    def __init__(
        self,
        computer: Computer,
        slots: Slots,
        grammars: SlotGrammars,
        queue: DeviceQueue,
        phases: Phases,
    ) -> None:
        self._computer = computer
        self._slots = slots
        self.grammars = grammars
        self._queue = queue
        self._phases = phases
        self._order = Order()
        self._in_flight: deque[BegunStep[Works]] = deque()

    @property
    def layers_done(self) -> int:
        """Layers queued since the start; readable from another thread."""
        return self._computer.layers_done

    def close(self) -> None:
        """Nobody asks for the results of steps in flight any more."""
        self._computer.cancel()
        self._in_flight.clear()
        self.grammars.close()

    def reset(self) -> None:
        """Forget every sequence, and what is in flight: a new session with the engine begins."""
        self._in_flight.clear()
        self._slots.clear()
        self.grammars.reset()
        self._order.reset()

    def execute(self, plan: Plan) -> Result:
        """As PlanRunner.execute; waits for the device."""
        return self.begin(plan).result()

    def begin(self, plan: Plan) -> BegunStep[Works]:
        """Queues the step.

        Raises PlanError for a plan that doesn't fit what came before; StepLost where no slot is to
        blame, and nothing is in flight any more then; any other failure becomes errors of the slots
        that it concerns, unless steps are computed together.
        """
        self._order.check(plan)
        with torch.inference_mode():
            step = self._guarded(lambda: self._queue_step(plan))
        self._in_flight.append(step)
        return step

    # ---- what a kind says

    @abstractmethod
    def _prepare(self, plan: Plan) -> None:
        """Queues copies of blocks, and changes the slots and what follows them. Raises
        PlanError."""

    @abstractmethod
    def _launches(self, plan: Plan, timeline: StepTimeline) -> list[Works]:
        """Queues the step's works, and tells the timeline of what has passed."""

    @abstractmethod
    def _outcomes(self, step: BegunStep[Works]) -> dict[int, SlotResult]:
        """What the step's launches gave, by slot, after the device is through with them; slots
        that are missing have failed."""

    # ---- how a step goes

    def _queue_step(self, plan: Plan) -> BegunStep[Works]:
        timeline = StepTimeline(self._queue, self._phases)
        self._prepare(plan)
        timeline.passed("copies" if plan.copies else None)
        self._order.take(plan)
        launches = self._launches(plan, timeline)
        timeline.close()
        return BegunStep(plan, self._slots.of(plan.work), launches, timeline, self._collect)

    def _collect_all(self) -> None:
        if self._in_flight:
            self._collect(self._in_flight[-1])

    def _collect(self, last: BegunStep[Works]) -> None:
        """Results of the steps in flight up to this one. Raises StepLost."""
        if last not in self._in_flight:
            return
        while last.outcome is None:
            self._settle(self._in_flight[0])
            self._in_flight.popleft()

    def _settle(self, step: BegunStep[Works]) -> None:
        seconds = self._guarded(step.timeline.seconds)
        result = answer(step.plan, self._outcomes(step), step.slots)
        step.outcome = msgspec.structs.replace(result, compute_seconds=seconds)

    def _guarded(self, call: Callable[[], Value]) -> Value:
        """Makes StepLost of what is no slot's fault, and drops what is in flight then."""
        return guarded(call, self._queue, self._in_flight.clear)
