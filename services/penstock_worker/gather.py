"""The rows of a step, out of the slots that they belong to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.protocol.to_worker import SlotWork
from penstock_worker.forward.interface import Batch
from penstock_worker.slots import Slots


def gather(works: Sequence[SlotWork], slots: Slots) -> Batch:
    """What a forward pass over these works computes."""
    tokens: list[int] = []
    tables: list[np.ndarray] = []
    for work in works:
        slot, end = slots[work.slot], work.start + work.count
        tokens += slot.tokens[work.start : end]
        tables.append(slot.table(end, slots.bounds.block_size))
    return Batch(
        tokens=np.array(tokens, dtype=np.int64),
        tables=tables,
        starts=np.array([work.start for work in works]),
        counts=np.array([work.count for work in works]),
    )
