"""A StepRunner over parts of a host, and one that shows every position's logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.model.transcription_facts import Alignment
from penstock.protocol.to_worker import SlotWork
from penstock_worker.alignment.slots import alignments
from penstock_worker.batch.block_copies import BlockCopies, Copies
from penstock_worker.batch.inputs import NO_DRAFTS, Drafts
from penstock_worker.batch.logits import in_torch
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slots
from penstock_worker.device.queue import HostQueue
from penstock_worker.forward.interface import Forward
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.sampler import Sampler
from penstock_worker.sampler.interface import HostSampler
from penstock_worker.speculation.drafting import Drafting
from penstock_worker.states.live_states import LiveStates
from penstock_worker.steps.feature import StepFeature
from penstock_worker.steps.generate import Generate
from penstock_worker.steps.runner import ShareThreads, StepRunner

Observer = Callable[[int, int, Tensor], None]
"""(slot, start, logits [count, vocab]) of every position that a step computes."""


class Observed(Generate):
    """Costs an output head for each position."""

    def __init__(self, observer: Observer, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._observer = observer

    def logits(
        self, scheduled: list[SlotWork], rows: np.ndarray, drafts: Drafts = NO_DRAFTS
    ) -> Tensor:
        batch = prepare_inputs(scheduled, self.slots, self.features.extending, drafts)
        everything = in_torch(self._forward.logits(batch, np.arange(len(batch.tokens))))
        row = 0
        for work in scheduled:
            self._observer(work.slot, work.start, everything[row : row + work.count])
            row += work.count + len(drafts.get(work.slot, ()))
        return everything[torch.from_numpy(rows)]


def host_runner(
    forward: Forward,
    sampler: Sampler,
    slots: Slots,
    *,
    copies: Copies | None = None,
    grammars: SlotGrammars | None = None,
    threads: int = 1,
    together: bool = False,
    observer: Observer | None = None,
    states: LiveStates | None = None,
    media: MediaEncodings | None = None,
    drafting: Drafting | None = None,
    alignment: Alignment | None = None,
    more: Sequence[StepFeature] = (),
) -> StepRunner[Any]:
    queue, sampling = HostQueue(), HostSampler(sampler)
    aligning = alignments(slots, media, forward, alignment)
    options: dict[str, Any] = {
        "copies": copies or BlockCopies(forward.kv_blocks(), 0),
        "together": together,
        "features": [
            each
            for each in (states, media, grammars, drafting, aligning, *more)
            if each is not None
        ],
    }
    if observer is None:
        kind = Generate(queue, forward, sampling, slots, **options)
    else:
        kind = Observed(observer, queue, forward, sampling, slots, **options)
    return StepRunner(queue, kind, threads=ShareThreads(threads))
