"""The interface between pooling steps and the model on a CPU."""

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
        """Layers computed since the start. May be read from another thread during a step."""

    def rows(self, works: list[SlotWork], slots: Slots) -> list[Tensor]:
        """Returns the last layer's output for each work: [count, hidden] for an encoder, or [1,
        hidden], that of the last token, for a decoder. May be called from several threads at once,
        with works that have no slot in common. The rows of an input have the same bits whatever
        else is computed."""

    def kv_blocks(self) -> list[np.ndarray]:
        """Returns views of the KV cache, each [blocks, bytes]; empty for a model without one."""

    def cancel(self) -> None:
        """Called when the worker stops: a step that is being computed may raise StepCancelled."""
