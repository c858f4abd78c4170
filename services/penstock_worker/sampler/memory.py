"""What a sampler keeps of slots between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.slots import Slots
from penstock_worker.steps.feature import StepFeature


class Remembers(Protocol):
    """A sampler that keeps something of slots between steps."""

    def forget(self, slot: int) -> None:
        """Drops what is kept for a slot. The slot's next request must have adjustments that know
        all tokens."""


class SamplerMemory(StepFeature):
    """What a sampler keeps of slots: it is dropped with their sequences, and where a launch has
    failed."""

    name = "sampler's memory"

    def __init__(self, sampler: Remembers, slots: Slots) -> None:
        self._sampler = sampler
        self._slots = slots

    def take(self, plan: Plan) -> None:
        for number in plan.released:
            self._sampler.forget(number)

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        for work in scheduled:
            self._sampler.forget(work.slot)

    def reset(self) -> None:
        for number in self._slots:
            self._sampler.forget(number)
