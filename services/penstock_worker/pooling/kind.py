"""Steps of a pooling model. What generates text knows nothing of it."""

from __future__ import annotations

from typing import Protocol

import torch

from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.block_copies import NO_COPIES, Copies
from penstock_worker.batch.slots import Slots
from penstock_worker.grammar import SlotGrammars
from penstock_worker.steps.guard import Guard
from penstock_worker.steps.kinds import Computer, StepKind, StepStart


class PoolingLaunch(Protocol):
    """Inputs of a step that were queued together."""

    def settle(self) -> dict[int, SlotResult]:
        """What each work gave, but for those of slots that have failed. Waits for the device."""


class Pooler(Protocol):
    """From a step's inputs to what their requests asked for."""

    @property
    def body(self) -> Computer:
        """The model without its output head."""

    def launch(self, scheduled: list[SlotWork], slots: Slots) -> PoolingLaunch:
        """Queues these works, and lets their slots go ahead of the device. Raises PlanError for a
        slot that asks for text."""


class Pool(StepKind[PoolingLaunch]):
    """pooler and copies work on one queue; without KV there are no copies. No grammar is ever
    compiled here."""

    def __init__(self, pooler: Pooler, slots: Slots, *, copies: Copies = NO_COPIES) -> None:
        super().__init__(pooler.body, slots, copies, SlotGrammars())
        self._pooler = pooler

    def launch(self, scheduled: list[SlotWork], start: StepStart) -> PoolingLaunch:
        launched = self._pooler.launch(scheduled, self.slots)
        start.timeline.passed("forward")
        return launched

    def settle(self, queued: PoolingLaunch, guard: Guard) -> dict[int, SlotResult]:
        with torch.inference_mode():
            return guard(queued.settle)
