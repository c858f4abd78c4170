"""The kind of step of a pooling model. The code for generation doesn't know it."""

from __future__ import annotations

from typing import Protocol

import torch

from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.adapters.interface import NO_ADAPTERS, StepAdapters
from penstock_worker.batch.block_copies import NO_COPIES, Copies
from penstock_worker.batch.slots import Slots
from penstock_worker.grammar import SlotGrammars
from penstock_worker.media.interface import NO_MEDIA, StepMedia
from penstock_worker.steps.guard import Guard
from penstock_worker.steps.kinds import Computer, StepKind, StepStart


class PoolingLaunch(Protocol):
    """Inputs of a step that were queued together."""

    def settle(self) -> dict[int, SlotResult]:
        """Waits for the device and returns the results by slot. Slots that have failed have
        none."""


class Pooler(Protocol):
    """Computes what pooling requests ask for."""

    @property
    def body(self) -> Computer:
        """The model without its output head."""

    def launch(self, scheduled: list[SlotWork], slots: Slots) -> PoolingLaunch:
        """Queues these works and advances their slots ahead of the device. Raises PlanError for a
        slot that asks for text."""


class Pool(StepKind[PoolingLaunch]):
    """The kind of step that pools. It never compiles a grammar."""

    pools = True

    def __init__(
        self,
        pooler: Pooler,
        slots: Slots,
        *,
        copies: Copies = NO_COPIES,
        media: StepMedia = NO_MEDIA,
        adapters: StepAdapters = NO_ADAPTERS,
    ) -> None:
        """`pooler`, `copies` and `media` work on the same queue. Without a KV cache there are no
        copies. `adapters`: those that `pooler` computes with."""
        super().__init__(pooler.body, slots, copies, SlotGrammars(), media=media, adapters=adapters)
        self._pooler = pooler

    def launch(self, scheduled: list[SlotWork], start: StepStart) -> PoolingLaunch:
        launched = self._pooler.launch(scheduled, self.slots)
        start.timeline.passed("forward")
        return launched

    def settle(self, queued: PoolingLaunch, guard: Guard) -> dict[int, SlotResult]:
        with torch.inference_mode():
            return guard(queued.settle)
