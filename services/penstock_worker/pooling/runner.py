"""Executes the plans of a pooling model. The runner of models that generate knows nothing of it.

Threads, failures and slots are as there: a step's inputs are dealt out, each thread takes its share
through the whole model by itself; what fails as one batch is computed one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

from penstock import logs
from penstock.model_config import PoolingConfig
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.block_copies import BlockCopies
from penstock_worker.grammar import Grammars
from penstock_worker.pooling.body import Body
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.pool import as_vectors, pooled
from penstock_worker.runner import deal
from penstock_worker.slots import PlanError, Slots

log = logs.get(__name__)


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
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "compute", torch.set_num_threads, (1,))
        self._last_step = 0
        self.grammars = Grammars()
        """None is ever compiled here."""

    @property
    def layers_done(self) -> int:
        """Layers computed since the start; readable from another thread."""
        return self._body.layers_done

    def close(self) -> None:
        """End the threads; a step that is being computed is given up as soon as may be."""
        self._body.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.grammars.close()

    def reset(self) -> None:
        """Forget every sequence: a new session with the engine begins."""
        self._slots.clear()
        self._last_step = 0

    def execute(self, plan: Plan) -> Result:
        """As Runner.execute: one SlotResult for each SlotWork, in order."""
        if plan.follows != self._last_step or plan.step <= plan.follows:
            raise PlanError(
                f"step {plan.step} follows {plan.follows}; the last step here is {self._last_step}"
            )
        if self._copies is not None:
            self._copies.make(plan.copies)
        elif plan.copies:
            raise PlanError("blocks are to be copied, and there are none")
        self._slots.apply(plan)
        self._last_step = plan.step
        able = [work for work in plan.work if self._slots[work.slot].failed is None]
        outcomes: dict[int, SlotResult] = {}
        for part in self._attempts(deal(able, self._threads)):
            outcomes |= part
        results = []
        for work in plan.work:
            outcome = outcomes.get(work.slot)
            results.append(outcome or SlotResult(work.slot, error=self._slots[work.slot].failed))
        return Result(plan.step, results)

    def _attempts(self, shares: list[list[SlotWork]]) -> Iterable[dict[int, SlotResult]]:
        if len(shares) == 1:
            return [self._attempt(shares[0])]
        return self._pool.map(self._attempt, shares)

    def _attempt(self, works: list[SlotWork]) -> dict[int, SlotResult]:
        """Compute; if that fails as one batch, one by one, so that only the guilty fail."""
        try:
            with torch.inference_mode():
                rows = self._body.rows(works, self._slots)
                pairs = zip(works, rows, strict=True)
                return {work.slot: self._settle(work, each) for work, each in pairs}
        except Exception as error:
            log.error("a step failed", exception=True, slots=len(works))
            if len(works) == 1:
                self._slots[works[0].slot].failed = f"{type(error).__name__}: {error}"
                return {}
        outcomes: dict[int, SlotResult] = {}
        for work in works:
            outcomes |= self._attempt([work])
        return outcomes

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
