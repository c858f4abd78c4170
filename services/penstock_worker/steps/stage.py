"""Steps of a stage before the last: the same forward passes, and nobody samples.

What a later stage finds out (tokens, masks that are late, logits that aren't finite) comes back in
plans, in SlotWork.sampled.  So nothing is skipped here that is computed there, nor there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from penstock.protocol.common import Grammar, TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.block_copies import Copies
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.interface import Forward
from penstock_worker.grammar import Compiled, SlotGrammars
from penstock_worker.steps.guard import Guard
from penstock_worker.steps.kinds import StepKind, StepStart
from penstock_worker.steps.prompt_logprobs import PromptLogprobs

NO_ROWS = np.empty(0, dtype=np.int64)


class EarlierStage(StepKind[list[SlotWork]]):
    """The slots of its results say nothing. forward: of a stage that isn't the last.

    The last stage has matchers; here every grammar is ready at once.
    """

    together = True

    def __init__(self, forward: Forward, slots: Slots, copies: Copies) -> None:
        super().__init__(forward, slots, copies, SlotGrammars(_unneeded))
        self._forward = forward
        self._prompts = PromptLogprobs(slots, _NoScores())

    def launch(self, scheduled: list[SlotWork], start: StepStart) -> list[SlotWork]:
        rest, _ = self._prompts.take(scheduled, self._pass)
        if rest:
            self._pass(rest, NO_ROWS)
        for work in scheduled:
            self.slots[work.slot].computed = work.start + work.count
        return scheduled

    def settle(self, queued: list[SlotWork], guard: Guard) -> dict[int, SlotResult]:
        return {work.slot: SlotResult(work.slot) for work in queued}

    def _pass(self, scheduled: list[SlotWork], rows: np.ndarray) -> Tensor:
        return self._forward.logits(prepare_inputs(scheduled, self.slots), rows)


class _NoScores:
    """In place of a sampler: there are no logits here."""

    def queue_score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs]]:
        return list


class _Unneeded:
    """Stands for a compiled grammar, of which only the last stage makes matchers: nobody asks this
    one for anything, so it has nothing else that Compiled has."""

    def matcher(self) -> None:
        raise RuntimeError("this stage samples nothing and follows no grammar")


def _unneeded(definition: Grammar) -> Compiled:
    return _Unneeded()  # type: ignore[return-value]
