"""Steps of a pipeline stage before the last: the same forward passes, without sampling.

What only the last stage knows (tokens, deferrals because of late masks, logits that are not finite)
comes back with later plans, in SlotWork.sampled. All stages must compute the same works, so none of
them skips any because of what it knows by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import GrammarReady, SlotResult
from penstock.protocol.to_worker import SlotWork, ToWorker
from penstock.protocol.worker_resources import CompileGrammar, DropGrammar
from penstock_worker.batch.block_copies import Copies
from penstock_worker.batch.logits import Logits
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.interface import Forward
from penstock_worker.steps.feature import StepFeature, Tell
from penstock_worker.steps.kinds import Guard, StepKind, StepStart
from penstock_worker.steps.prompt_logprobs import PromptLogprobs, PromptScores

if TYPE_CHECKING:
    pass

NO_ROWS = np.empty(0, dtype=np.int64)


class EarlierStage(StepKind[list[SlotWork]]):
    """The kind of step of a stage before the last. Its results name the slots and nothing else."""

    together = True
    pools = True

    def __init__(
        self, forward: Forward, slots: Slots, copies: Copies, features: Iterable[StepFeature] = ()
    ) -> None:
        """`forward` is that of a stage before the last. `features`: those that the last stage's
        have a part of here, and GrammarsElsewhere."""
        super().__init__(forward, slots, copies, features)
        self._forward = forward
        self._prompts = PromptLogprobs(slots, _NoScores(), self.features)

    def launch(self, scheduled: list[SlotWork], start: StepStart) -> list[SlotWork]:
        rest = self._prompts.take(scheduled, self._pass, PromptScores())
        if rest:
            self._pass(rest, NO_ROWS)
        for work in scheduled:
            self.slots[work.slot].computed = work.start + work.count
        return scheduled

    def settle(self, queued: list[SlotWork], guard: Guard) -> dict[int, SlotResult]:
        return {work.slot: SlotResult(work.slot) for work in queued}

    def _pass(self, scheduled: list[SlotWork], rows: np.ndarray) -> Logits:
        batch = prepare_inputs(scheduled, self.slots, self.features.extending)
        return self._forward.logits(batch, rows)


class _NoScores:
    """Takes the sampler's place, as this stage has no logits."""

    def queue_score(
        self, logits: Logits, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs]]:
        return list


class GrammarsElsewhere(StepFeature):
    """Grammars that only the last stage has matchers of: here, each counts as ready at once."""

    name = "grammars"
    heard = (CompileGrammar,)
    received = (DropGrammar,)

    def hear(self, message: ToWorker, frames: Sequence[bytes], tell: Tell) -> None:
        if isinstance(message, CompileGrammar):
            tell(GrammarReady(message.grammar))
