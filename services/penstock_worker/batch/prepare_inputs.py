"""Makes a step's input batch from slots and scheduled works."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.inputs import NO_DRAFTS, Drafts
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.interface import Batch
from penstock_worker.steps.feature import StepFeature


def prepare_inputs(
    scheduled: Sequence[SlotWork],
    slots: Slots,
    features: Sequence[StepFeature] = (),
    drafts: Drafts = NO_DRAFTS,
) -> Batch:
    """Returns the input of a forward pass over these works, in their order, and over what is
    drafted after them. `features` extend it."""
    tokens: list[int] = []
    if drafts:
        scheduled = [_with_draft(work, drafts) for work in scheduled]
    for work, slot in zip(scheduled, slots.of(scheduled), strict=True):
        start = work.start
        tokens += slot.token_ids[start : start + work.count]
        if work.slot in drafts:
            tokens += drafts[work.slot]
    # Not by numpy: for few numbers, and after a step that has evicted everything from the
    # processor's caches, each of its operations takes longer than a loop.
    size = slots.bounds.block_size
    widths = [-(-(work.start + work.count) // size) for work in scheduled]
    numbers = [work.slot for work in scheduled]
    first, *others = (
        slots.tables.of(numbers, widths, group) for group in range(len(slots.bounds.groups))
    )
    batch = Batch(
        tokens=np.array(tokens, dtype=np.int64),
        tables=first,
        starts=np.array([work.start for work in scheduled], dtype=np.int64),
        counts=np.array([work.count for work in scheduled], dtype=np.int64),
        more_tables=tuple(others),
        slots=numbers,
    )
    for feature in features:
        batch = feature.extend(batch, scheduled, slots)
    return batch


def _with_draft(work: SlotWork, drafts: Drafts) -> SlotWork:
    return SlotWork(work.slot, work.start, work.count + len(drafts.get(work.slot, ())))
