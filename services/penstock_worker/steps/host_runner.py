"""Executes plans: the hottest file of the worker, and the whole of its interface.

Charter.  A step is: copy blocks, change the slots, one forward pass over all work, logits of the
rows that end their slot's tokens, one sampler call.  Kinds of work are not told apart: a prefill, a
chunk, a decode and a resumed sequence are all "compute tokens [start, start + count)".  What may
not be added here: branches per feature or per model, I/O, clocks, knowledge of requests, stopping
rules, anything that makes one slot's numbers depend on another's.  Features come as objects:
models, attention backends, the sampler with its rules, the prompt's log-probabilities.

The order of steps, their shares among threads, and failures are in `steps`; how a step is begun and
a session ends, in `plan_runner`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.interface import Forward
from penstock_worker.grammar import SlotGrammars
from penstock_worker.sampler import SampledToken, Sampler
from penstock_worker.steps.attempts import Steps
from penstock_worker.steps.host_plan_runner import PlanRunner
from penstock_worker.steps.prompt_logprobs import PromptLogprobs
from penstock_worker.steps.sampling import ask_of, sampling_rows, told

Observer = Callable[[int, int, Tensor], None]
"""(slot, start, logits [count, vocab]) of every position that a step computes."""


class Runner(PlanRunner):
    """forward, slots and copies agree on the number and size of KV blocks.

    threads: that call `forward` at once, each with torch's own count set to 1.
    together: see Steps.
    observer: for tests that look at every position's logits; costs an output head for each.
    """

    def __init__(
        self,
        forward: Forward,
        sampler: Sampler,
        slots: Slots,
        *,
        copies: BlockCopies | None = None,
        grammars: SlotGrammars | None = None,
        threads: int = 1,
        together: bool = False,
        observer: Observer | None = None,
    ) -> None:
        steps = Steps(slots, threads, together)
        super().__init__(forward, slots, steps, grammars or SlotGrammars())
        self._forward = forward
        self._sampler = sampler
        self._prompts = PromptLogprobs(slots, sampler)
        self._copies = copies or BlockCopies(forward.kv_blocks(), 0)
        self._observer = observer

    def _prepare(self, plan: Plan) -> None:
        self._copies.make(plan.copies)
        self._slots.apply(plan)
        self.grammars.apply(plan)

    def _compute(self, works: list[SlotWork]) -> dict[int, SlotResult]:
        rest, prompts = self._prompts.take(works, self._logits)
        chosen: dict[int, SampledToken] = {}
        if rest:
            numbers, rows = sampling_rows(self._slots, rest)
            chosen = self._choose(self._logits(rest, rows), numbers)
        return {
            work.slot: self._settle(work, chosen.get(work.slot), prompts.get(work.slot))
            for work in works
            if self._slots[work.slot].failed is None
        }

    def _logits(self, works: list[SlotWork], rows: np.ndarray) -> Tensor:
        """One forward pass over all of the works; the logits of some of their rows."""
        batch = prepare_inputs(works, self._slots)
        if self._observer is None:
            return self._forward.logits(batch, rows)
        everything = self._forward.logits(batch, np.arange(len(batch.tokens)))
        self._observe(self._observer, works, everything)
        return everything[torch.from_numpy(rows)]

    def _choose(self, logits: Tensor, numbers: list[int]) -> dict[int, SampledToken]:
        """The next token of each of these slots; logits: [slots, vocab]."""
        if not numbers:
            return {}
        masks = self.grammars.masks(numbers)
        asks = []
        for number in numbers:
            mask = masks.get(number)
            asks.append(ask_of(self._slots[number], None if mask is None else mask.allowed))
        chosen = dict(zip(numbers, self._sampler.sample(logits, asks), strict=True))
        return chosen | {number: mask.judge(chosen[number]) for number, mask in masks.items()}

    def _settle(
        self, work: SlotWork, choice: SampledToken | None, prompt: list[TokenLogprobs] | None
    ) -> SlotResult:
        slot = self._slots[work.slot]
        slot.computed = work.start + work.count
        if choice is not None and choice.deferred:
            slot.computed -= 1  # Its logits are wanted again.
        elif choice is not None and choice.token is not None:
            slot.append(choice.token)
            self.grammars.advance(work.slot, choice.token)
        elif choice is not None:
            slot.failed = choice.error
        return told(work, choice, prompt)

    def _observe(self, observer: Observer, works: list[SlotWork], logits: Tensor) -> None:
        row = 0
        for work in works:
            observer(work.slot, work.start, logits[row : row + work.count])
            row += work.count
