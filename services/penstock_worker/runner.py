"""Executes plans: the hottest file of the worker, and the whole of its interface.

Charter.  A step is: change the slots, one forward pass over all work, logits of the rows that end
their slot's tokens, one sampler call.  Kinds of work are not told apart: a prefill, a chunk, a
decode and a resumed sequence are all "compute tokens [start, start + count)".  What may not be
added here: branches per feature or per model, I/O, clocks, knowledge of requests, stopping rules,
anything that makes one slot's numbers depend on another's.  Features come as objects: models,
attention backends, the sampler.

Threads.  A step's sequences are dealt out to as many threads as there are cores, and each thread
takes its share through the whole model by itself; the operations inside run on one thread.  That
may be done because no number depends on what else is in a batch, and it needs one meeting per step
where threads inside the operations need thousands: on 2 cores that others use too, waiting for
each other there made steps many times slower, spinning or not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock import logs
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_kernels.reference.tiling import ROW_TILE, padded_rows
from penstock_worker.attention.interface import AttentionBackend, BatchLayout
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.sampler import Ask, Choice, sample
from penstock_worker.slots import PlanError, Slots

log = logs.get(__name__)

Observer = Callable[[int, int, Tensor], None]
"""(slot, start, logits [count, vocab]) of every position that a step computes."""


class StepCancelled(BaseException):
    """The runner was closed while it computed."""


class Runner:
    """model and attention agree on layers, heads and dtype; slots on the number of blocks.

    threads: that compute, each with torch's own count set to 1.
    layers_done: layers computed since the start, readable from another thread.
    observer: for tests that look at every position's logits; costs an output head for each.
    """

    def __init__(
        self,
        model: DecoderModel,
        attention: AttentionBackend,
        slots: Slots,
        *,
        threads: int = 1,
        observer: Observer | None = None,
    ) -> None:
        self.layers_done = 0
        self._layers_lock = threading.Lock()
        self._closing = False
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "compute", torch.set_num_threads, (1,))
        self._model = model
        self._attention = attention
        self._slots = slots
        self._observer = observer
        self._last_step = 0

    def close(self) -> None:
        """End the threads; a step that is being computed is given up after its present layer."""
        self._closing = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def reset(self) -> None:
        """Forget every sequence: a new session with the engine begins."""
        self._slots.clear()
        self._last_step = 0

    def execute(self, plan: Plan) -> Result:
        """One SlotResult for each SlotWork, in order. Changes slots and KV cache.

        Raises PlanError for a plan that doesn't fit what came before; any other failure becomes
        errors of the slots that it concerns.
        """
        if plan.follows != self._last_step or plan.step <= plan.follows:
            raise PlanError(
                f"step {plan.step} follows {plan.follows}; the last step here is {self._last_step}"
            )
        self._slots.apply(plan)
        self._last_step = plan.step
        able = [work for work in plan.work if self._slots[work.slot].failed is None]
        outcomes: dict[int, SlotResult] = {}
        for part in self._pool.map(self._attempt, deal(able, self._threads)):
            outcomes |= part
        results = []
        for work in plan.work:
            error = self._slots[work.slot].failed
            results.append(SlotResult(work.slot, error=error) if error else outcomes[work.slot])
        return Result(plan.step, results)

    def _attempt(self, works: list[SlotWork]) -> dict[int, SlotResult]:
        """Compute; if that fails as one batch, one by one, so that only the guilty fail.

        That is sound because computing a token again writes the same bits.
        """
        try:
            with torch.inference_mode():
                return self._compute(works)
        except Exception as error:
            log.error("a step failed", exception=True, slots=len(works))
            if len(works) == 1:
                self._slots[works[0].slot].failed = f"{type(error).__name__}: {error}"
                return {}
        outcomes: dict[int, SlotResult] = {}
        for work in works:
            outcomes |= self._attempt([work])
        return outcomes

    def _compute(self, works: list[SlotWork]) -> dict[int, SlotResult]:
        batch = self._gather(works)
        hidden = self._model.hidden(
            batch.tokens, batch.positions, self._attention.plan(batch.layout), self._count_layer
        )
        if self._observer is not None:
            self._observe(self._observer, works, hidden)
        choices = self._sample(works, batch, hidden)
        return {work.slot: self._settle(work, choices.get(work.slot)) for work in works}

    def _gather(self, works: list[SlotWork]) -> _Batch:
        tokens: list[int] = []
        tables: list[np.ndarray] = []
        starts = np.array([work.start for work in works])
        counts = np.array([work.count for work in works])
        for work in works:
            slot, end = self._slots[work.slot], work.start + work.count
            tokens += slot.tokens[work.start : end]
            tables.append(slot.table(end, self._slots.bounds.block_size))
        rows = len(tokens)
        first = np.cumsum(counts) - counts
        positions = np.arange(rows) - np.repeat(first - starts, counts)
        padding = padded_rows(rows) - rows
        return _Batch(
            tokens=torch.tensor(tokens + [0] * padding),
            positions=torch.from_numpy(np.pad(positions, (0, padding))),
            layout=BatchLayout(tables, starts, counts),
        )

    def _sample(self, works: list[SlotWork], batch: _Batch, hidden: Tensor) -> dict[int, Choice]:
        """Choices for the slots whose tokens end with this step's work."""
        ends = np.cumsum(batch.layout.counts) - 1
        numbers, rows, asks = [], [], []
        for work, row in zip(works, ends.tolist(), strict=True):
            slot = self._slots[work.slot]
            if work.start + work.count == len(slot.tokens):
                numbers.append(work.slot)
                rows.append(row)
                asks.append(Ask(slot.sampling, slot.index, slot.emitted))
        if not rows:
            return {}
        logits = self._model.logits(hidden[rows])
        return dict(zip(numbers, sample(logits, asks), strict=True))

    def _settle(self, work: SlotWork, choice: Choice | None) -> SlotResult:
        slot = self._slots[work.slot]
        slot.computed = work.start + work.count
        if choice is None:
            return SlotResult(work.slot)
        if choice.token is None:
            slot.failed = choice.error
            return SlotResult(work.slot, error=choice.error)
        slot.tokens.append(choice.token)
        return SlotResult(work.slot, choice.token, choice.logprobs)

    def _observe(self, observer: Observer, works: list[SlotWork], hidden: Tensor) -> None:
        logits = self._model.logits(hidden)
        row = 0
        for work in works:
            observer(work.slot, work.start, logits[row : row + work.count])
            row += work.count

    def _count_layer(self) -> None:
        if self._closing:
            raise StepCancelled
        with self._layers_lock:
            self.layers_done += 1


def deal(works: list[SlotWork], hands: int) -> list[list[SlotWork]]:
    """Works in at most `hands` shares of about equal token counts, none of less than a row tile
    unless there is less: a tile costs the same however few of its rows are used."""
    tokens = sum(work.count for work in works)
    hands = min(hands, len(works), -(-tokens // ROW_TILE))
    shares: list[list[SlotWork]] = [[] for _ in range(hands)]
    sizes = [0] * hands
    for work in sorted(works, key=lambda work: -work.count):
        least = sizes.index(min(sizes))
        shares[least].append(work)
        sizes[least] += work.count
    return shares


@dataclass(frozen=True)
class _Batch:
    """tokens, positions: [rows] int64, padded with zeros to whole row tiles."""

    tokens: Tensor
    positions: Tensor
    layout: BatchLayout
