"""Executes plans in a stage before the last: the same forward passes, and nobody samples.

What a later stage finds out (tokens, masks that are late, logits that aren't finite) comes back in
plans, in SlotWork.sampled.  So nothing is skipped here that is computed there, nor there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from penstock.protocol.common import Grammar, TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.block_copies import Copies
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.interface import Forward
from penstock_worker.grammar import Compiled, SlotGrammars
from penstock_worker.steps.attempts import Steps
from penstock_worker.steps.host_plan_runner import PlanRunner
from penstock_worker.steps.prompt_logprobs import PromptLogprobs

NO_ROWS = np.empty(0, dtype=np.int64)


class StageRunner(PlanRunner):
    """As Runner; the slots of its results say nothing. forward: of a stage that isn't the last.

    The last stage has matchers; here every grammar is ready at once.
    """

    def __init__(self, forward: Forward, slots: Slots, copies: Copies) -> None:
        steps = Steps(slots, threads=1, together=True)
        super().__init__(forward, slots, steps, SlotGrammars(_unneeded))
        self._forward = forward
        self._copies = copies
        self._prompts = PromptLogprobs(slots, _NoScores())

    def _prepare(self, plan: Plan) -> None:
        self._copies.make(plan.copies)
        self._slots.apply(plan)

    def _compute(self, works: list[SlotWork]) -> dict[int, SlotResult]:
        rest, _ = self._prompts.take(works, self._pass)
        if rest:
            self._pass(rest, NO_ROWS)
        for work in works:
            self._slots[work.slot].computed = work.start + work.count
        return {work.slot: SlotResult(work.slot) for work in works}

    def _pass(self, works: list[SlotWork], rows: np.ndarray) -> Tensor:
        return self._forward.logits(prepare_inputs(works, self._slots), rows)


class _NoScores:
    """In place of a sampler: there are no logits here."""

    def score(self, logits: Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
        return []


class _Unneeded:
    """Stands for a compiled grammar, of which only the last stage makes matchers: nobody asks this
    one for anything, so it has nothing else that Compiled has."""

    def matcher(self) -> None:
        raise RuntimeError("this stage samples nothing and follows no grammar")


def _unneeded(definition: Grammar) -> Compiled:
    return _Unneeded()  # type: ignore[return-value]
