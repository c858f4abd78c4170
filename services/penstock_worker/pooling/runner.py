"""Executes the plans of a pooling model. The runner of models that generate knows nothing of it."""

from __future__ import annotations

import torch

from penstock.model_config import PoolingConfig
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.block_copies import BlockCopies
from penstock_worker.grammar import Grammars
from penstock_worker.pending import Executed
from penstock_worker.pooling.body import Body
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.pool import as_vectors, pooled
from penstock_worker.slots import PlanError, Slots
from penstock_worker.steps import Steps


class PoolingRunner:
    """body and copies agree on the number and size of KV blocks; without KV there are no copies.

    threads: that call `body` at once, each with torch's own count set to 1.
    """

    def __init__(
        self,
        body: Body,
        head: Head | None,
        pooling: PoolingConfig,
        slots: Slots,
        *,
        copies: BlockCopies | None = None,
        threads: int = 1,
    ) -> None:
        self._body = body
        self._head = head
        self._pooling = pooling
        self._slots = slots
        self._copies = copies
        self._steps = Steps(slots, threads)
        self.grammars = Grammars()
        """None is ever compiled here."""

    @property
    def layers_done(self) -> int:
        """Layers computed since the start; readable from another thread."""
        return self._body.layers_done

    def close(self) -> None:
        """End the threads; a step that is being computed is given up as soon as may be."""
        self._body.cancel()
        self._steps.close()
        self.grammars.close()

    def reset(self) -> None:
        """Forget every sequence: a new session with the engine begins."""
        self._slots.clear()
        self._steps.reset()

    def execute(self, plan: Plan) -> Result:
        """As Runner.execute: one SlotResult for each SlotWork, in order."""
        return self._steps.execute(plan, self._prepare, self._compute)

    def begin(self, plan: Plan) -> Executed:
        """As `execute`, which it does at once."""
        return Executed(self.execute, plan)

    def _prepare(self, plan: Plan) -> None:
        if self._copies is not None:
            self._copies.make(plan.copies)
        elif plan.copies:
            raise PlanError("blocks are to be copied, and there are none")
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
