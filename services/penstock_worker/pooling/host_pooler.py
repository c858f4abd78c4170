"""Pooling on a CPU, where a step is done when the call returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import PlanError, Slots
from penstock_worker.pooling.adapters import PoolAdapters
from penstock_worker.pooling.body import Body
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.pool import as_vectors, pooled


@dataclass(frozen=True)
class HostPoolingLaunch:
    """Inputs of a step, whose results are known already."""

    results: dict[int, SlotResult]

    def settle(self) -> dict[int, SlotResult]:
        return self.results


@dataclass(frozen=True)
class HostPooler:
    """Computes pooling requests on a CPU."""

    body: Body
    head: Head | None
    config: PoolingConfig
    dense: Head
    """What an embedding goes through."""
    adapters: PoolAdapters = field(default_factory=PoolAdapters)
    """The adapters of sequences, whose heads may be others."""

    def launch(self, scheduled: list[SlotWork], slots: Slots) -> HostPoolingLaunch:
        rows = self.body.rows(scheduled, slots)
        pairs = zip(scheduled, rows, strict=True)
        return HostPoolingLaunch(
            {
                work.slot: self._pool(work, own, slots)
                for work, own in pairs
                if slots[work.slot].failed is None
            }
        )

    def _pool(self, work: SlotWork, rows: Tensor, slots: Slots) -> SlotResult:
        slot, end = slots[work.slot], work.start + work.count
        if slot.pooling is None:
            raise PlanError(f"slot {work.slot} asks a pooling model for text")
        if end < len(slot.token_ids):
            slot.computed = end
            return SlotResult(work.slot)
        head = self.adapters.head_of(work.slot, self.head)
        vectors = as_vectors(pooled(rows, slot.pooling, self.config, head, self.dense))
        slot.computed = end
        return SlotResult(work.slot, 0, vectors=vectors)
