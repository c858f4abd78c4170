"""What the pooling runner needs from whatever computes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor

from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slots


class Body(Protocol):
    """A model without its output head."""

    @property
    def layers_done(self) -> int:
        """Layers computed since the start; readable from another thread during a step."""

    def rows(self, works: list[SlotWork], slots: Slots) -> list[Tensor]:
        """For each work, the last layer's output: [count, hidden] of an encoder's, [1, hidden]
        (of its last token) of a decoder's.  May be called from several threads at once, with works
        that have no slot in common.  An input's rows have the same bits in any company."""

    def kv_blocks(self) -> list[np.ndarray]:
        """Views of the KV cache, each [blocks, bytes]; empty where there is none."""

    def cancel(self) -> None:
        """The worker leaves: a step that is being computed may raise StepCancelled."""
