"""Executes the plans of a pooling model on a device that works behind a queue.

`begin` queues a whole step, down to the copies of its vectors to pinned memory, and waits for
nothing; a step may be begun while earlier ones are pending.  `result` waits for the copies, and
does on the host what differs from request to request: cutting, normalising, probabilities.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
import torch

from penstock.model_config import PoolingConfig
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.block_copies import Copies
from penstock_worker.device.guard import guarded
from penstock_worker.device.queue import DeviceQueue, queue_of
from penstock_worker.device.step import DeviceStep
from penstock_worker.device.timeline import Timeline
from penstock_worker.grammar import Grammars
from penstock_worker.metrics.phases import Phases, Unwatched
from penstock_worker.pooling.device_body import DeviceBody
from penstock_worker.pooling.device_launch import PoolingLaunch
from penstock_worker.pooling.heads import Head
from penstock_worker.sampler.transfers import Transfers, transfers
from penstock_worker.slots import PlanError, Slots
from penstock_worker.steps import Order, able, answer, attempt

Value = TypeVar("Value")
Step = DeviceStep[PoolingLaunch]
UNWATCHED = Unwatched()


class DevicePoolingRunner:
    """body, head and copies work on one queue; without KV there are no copies.

    queue, ways: None: torch's own for the device.  phases: are told the device's own seconds.
    """

    def __init__(
        self,
        body: DeviceBody,
        head: Head | None,
        pooling: PoolingConfig,
        slots: Slots,
        *,
        copies: Copies | None = None,
        queue: DeviceQueue | None = None,
        ways: Transfers | None = None,
        phases: Phases = UNWATCHED,
    ) -> None:
        self._body = body
        self._head = head
        self._pooling = pooling
        self._slots = slots
        self._copies = copies
        self._queue = queue or queue_of(body.device)
        self._transfers = ways or transfers(body.device)
        self._phases = phases
        self._order = Order()
        self._in_flight: deque[Step] = deque()
        self.grammars = Grammars()
        """None is ever compiled here."""

    @property
    def layers_done(self) -> int:
        """Layers queued since the start; readable from another thread."""
        return self._body.layers_done

    def close(self) -> None:
        """Nobody asks for the results of steps in flight any more."""
        self._body.cancel()
        self._in_flight.clear()
        self.grammars.close()

    def reset(self) -> None:
        """Forget every sequence, and what is in flight: a new session with the engine begins."""
        self._in_flight.clear()
        self._slots.clear()
        self._order.reset()

    def execute(self, plan: Plan) -> Result:
        """As Runner.execute; waits for the device."""
        return self.begin(plan).result()

    def begin(self, plan: Plan) -> Step:
        """Queues the step. Raises as DeviceRunner.begin."""
        self._order.check(plan)
        with torch.inference_mode():
            step = self._guarded(lambda: self._queue_step(plan))
        self._in_flight.append(step)
        return step

    def _queue_step(self, plan: Plan) -> Step:
        timeline = Timeline(self._queue, self._phases)
        self._prepare(plan)
        timeline.passed("copies" if plan.copies else None)
        self._order.take(plan)
        works = able(plan, self._slots)
        launches = attempt(works, self._launch, self._slots) if works else []
        timeline.passed("forward")
        timeline.close()
        return DeviceStep(plan, self._slots.of(plan.work), launches, timeline, self._collect)

    def _prepare(self, plan: Plan) -> None:
        if self._copies is not None:
            self._copies.make(plan.copies)
        elif plan.copies:
            raise PlanError("blocks are to be copied, and there are none")
        self._slots.apply(plan)

    def _launch(self, works: list[SlotWork]) -> PoolingLaunch:
        """Queues these works. Where that fails, all is as if it had not been tried."""
        return self._guarded(lambda: self._queue_works(works))

    def _queue_works(self, works: list[SlotWork]) -> PoolingLaunch:
        launch = PoolingLaunch.of(works, self._slots)
        launch.fetch(self._body.hidden(works, self._slots), self._head, self._transfers)
        launch.advance()
        return launch

    def _collect(self, last: Step) -> None:
        """Results of the steps in flight up to this one. Raises StepLost."""
        if last not in self._in_flight:
            return
        with torch.inference_mode():
            while last.outcome is None:
                self._settle(self._in_flight[0])
                self._in_flight.popleft()

    def _settle(self, step: Step) -> None:
        seconds = self._guarded(step.timeline.seconds)
        outcomes: dict[int, SlotResult] = {}
        for launch in step.launches:
            outcomes |= self._guarded(partial(launch.settle, self._pooling))
        result = answer(step.plan, outcomes, step.slots)
        step.outcome = msgspec.structs.replace(result, compute_seconds=seconds)

    def _guarded(self, call: Callable[[], Value]) -> Value:
        return guarded(call, self._queue, self._in_flight.clear)
