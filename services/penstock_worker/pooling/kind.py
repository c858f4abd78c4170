"""Executes the plans of a pooling model on a device that works behind a queue.

`begin` queues a whole step, down to the copies of its vectors to pinned memory.  `result` waits for
those, and does on the host what differs from request to request: cutting, normalising,
probabilities.
"""

from __future__ import annotations

from functools import partial

import torch

from penstock.model_config import PoolingConfig
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.block_copies import NO_COPIES, Copies
from penstock_worker.batch.slots import Slots
from penstock_worker.device.queue import DeviceQueue, queue_of
from penstock_worker.grammar import SlotGrammars
from penstock_worker.metrics.phases import UNWATCHED, Phases
from penstock_worker.pooling.device_body import DeviceBody
from penstock_worker.pooling.device_launch import PoolingLaunch
from penstock_worker.pooling.heads import Head
from penstock_worker.sampler.transfers import Transfers, transfers
from penstock_worker.steps.attempts import able, attempt
from penstock_worker.steps.begun import BegunStep
from penstock_worker.steps.runner import DevicePlanRunner
from penstock_worker.steps.timeline import StepTimeline


class DevicePoolingRunner(DevicePlanRunner[PoolingLaunch]):
    """body, head and copies work on one queue; without KV there are no copies.

    queue, ways: None: torch's own for the device.  phases: are told the device's own seconds.  No
    grammar is ever compiled here.
    """

    def __init__(
        self,
        body: DeviceBody,
        head: Head | None,
        pooling: PoolingConfig,
        slots: Slots,
        *,
        copies: Copies = NO_COPIES,
        queue: DeviceQueue | None = None,
        ways: Transfers | None = None,
        phases: Phases = UNWATCHED,
    ) -> None:
        super().__init__(body, slots, SlotGrammars(), queue or queue_of(body.device), phases)
        self._body = body
        self._head = head
        self._pooling = pooling
        self._copies = copies
        self._transfers = ways or transfers(body.device)

    def _prepare(self, plan: Plan) -> None:
        self._copies.make(plan.copies)
        self._slots.apply(plan)

    def _launches(self, plan: Plan, timeline: StepTimeline) -> list[PoolingLaunch]:
        works = able(plan, self._slots)
        launches = attempt(works, self._launch, self._slots) if works else []
        timeline.passed("forward")
        return launches

    def _launch(self, works: list[SlotWork]) -> PoolingLaunch:
        """Queues these works. Where that fails, all is as if it had not been tried."""
        return self._guarded(lambda: self._queue_works(works))

    def _queue_works(self, works: list[SlotWork]) -> PoolingLaunch:
        launch = PoolingLaunch.of(works, self._slots)
        launch.fetch(self._body.hidden(works, self._slots), self._head, self._transfers)
        launch.advance()
        return launch

    def _outcomes(self, step: BegunStep[PoolingLaunch]) -> dict[int, SlotResult]:
        outcomes: dict[int, SlotResult] = {}
        with torch.inference_mode():
            for launch in step.launches:
                outcomes |= self._guarded(partial(launch.settle, self._pooling))
        return outcomes
