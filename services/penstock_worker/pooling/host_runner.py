"""Executes the plans of a pooling model. The runner of models that generate knows nothing of it."""

from __future__ import annotations

import torch

from penstock.model_config import PoolingConfig
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.block_copies import NO_COPIES, Copies
from penstock_worker.batch.slots import PlanError, Slots
from penstock_worker.grammar import SlotGrammars
from penstock_worker.pooling.body import Body
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.pool import as_vectors, pooled
from penstock_worker.steps.attempts import Steps
from penstock_worker.steps.host_plan_runner import PlanRunner


class PoolingRunner(PlanRunner):
    """body and copies agree on the number and size of KV blocks; without KV there are no copies.

    threads: that call `body` at once, each with torch's own count set to 1.  No grammar is ever
    compiled here.
    """

    def __init__(
        self,
        body: Body,
        head: Head | None,
        pooling: PoolingConfig,
        slots: Slots,
        *,
        copies: Copies = NO_COPIES,
        threads: int = 1,
    ) -> None:
        super().__init__(body, slots, Steps(slots, threads), SlotGrammars())
        self._body = body
        self._head = head
        self._pooling = pooling
        self._copies = copies

    def _prepare(self, plan: Plan) -> None:
        self._copies.make(plan.copies)
        self._slots.apply(plan)

    def _compute(self, works: list[SlotWork]) -> dict[int, SlotResult]:
        rows = self._body.rows(works, self._slots)
        pairs = zip(works, rows, strict=True)
        return {work.slot: self._settle(work, each) for work, each in pairs}

    def _settle(self, work: SlotWork, rows: torch.Tensor) -> SlotResult:
        slot, end = self._slots[work.slot], work.start + work.count
        if slot.pooling is None:
            raise PlanError(f"slot {work.slot} asks a pooling model for text")
        if end < len(slot.tokens):
            slot.computed = end
            return SlotResult(work.slot)
        vectors = as_vectors(pooled(rows, slot.pooling, self._pooling, self._head))
        slot.computed = end
        return SlotResult(work.slot, 0, vectors=vectors)
