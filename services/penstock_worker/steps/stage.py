"""Steps of a pipeline stage before the last: the same forward passes, without sampling.

What only the last stage knows (tokens, deferrals because of late masks, logits that are not finite)
comes back with later plans, in SlotWork.sampled. All stages must compute the same works, so none of
them skips any because of what it knows by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from penstock.protocol.common import Grammar, TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_worker.adapters.interface import NO_ADAPTERS, StepAdapters
from penstock_worker.batch.block_copies import Copies
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.interface import Forward
from penstock_worker.grammar import Compiled, SlotGrammars
from penstock_worker.media.interface import NO_MEDIA, StepMedia
from penstock_worker.states.interface import STATELESS, States
from penstock_worker.steps.guard import Guard
from penstock_worker.steps.kinds import StepKind, StepStart
from penstock_worker.steps.prompt_logprobs import PromptLogprobs
from penstock_worker.stores.tier import NO_STORE, StepStore

NO_ROWS = np.empty(0, dtype=np.int64)


class EarlierStage(StepKind[list[SlotWork]]):
    """The kind of step of a stage before the last. Its results name the slots and nothing else.

    Only the last stage has grammar matchers; here every grammar counts as ready at once.
    """

    together = True

    def __init__(
        self,
        forward: Forward,
        slots: Slots,
        copies: Copies,
        media: StepMedia = NO_MEDIA,
        states: States = STATELESS,
        adapters: StepAdapters = NO_ADAPTERS,
        stored: StepStore = NO_STORE,
    ) -> None:
        """`forward` is that of a stage before the last. `states`: of its recurrent layers."""
        grammars = SlotGrammars(_compile_nothing)
        super().__init__(forward, slots, copies, grammars, states, media, adapters, stored)
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
        batch = prepare_inputs(scheduled, self.slots, self.media, adapters=self.adapters)
        return self._forward.logits(batch, rows)


class _NoScores:
    """Takes the sampler's place, as this stage has no logits."""

    def queue_score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs]]:
        return list


class _CompiledElsewhere:
    """Takes the place of a compiled grammar. Only the last stage makes matchers, so nothing else of
    Compiled is ever used."""

    def matcher(self) -> None:
        raise RuntimeError("this stage samples nothing and follows no grammar")


def _compile_nothing(definition: Grammar) -> Compiled:
    return _CompiledElsewhere()  # type: ignore[return-value]
