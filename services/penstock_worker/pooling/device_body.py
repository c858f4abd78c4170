"""The interface between pooling steps and the model on a device with a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.pooling_config import PoolingMode
from penstock.protocol.to_worker import SlotWork
from penstock_kernels.triton.rowwise.pool_rows import max_rows, mean_rows
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slots
from penstock_worker.device.memory import DeviceMemory
from penstock_worker.forward.interface import DeviceForward
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.forward.uploads import Uploads
from penstock_worker.pooling.encoders import Encoder, Inputs, inputs_of


@dataclass(frozen=True)
class Hidden:
    """The output of one step, on the device."""

    vectors: Tensor
    """[works, hidden] float32: one vector per input; after a chunk, that of its last token so
    far."""
    rows: Tensor | None
    """[tokens, hidden]: the vectors of all tokens; None if only the last ones are kept."""


class DeviceBody(Protocol):
    """A model without its output head, whose work is queued on torch's current stream."""

    device: torch.device

    @property
    def layers_done(self) -> int:
        """Layers queued since the start. May be read from another thread."""

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        """Queues these works without waiting for the device. Raises torch.OutOfMemoryError."""

    def cancel(self) -> None:
        """Called when the worker stops: a step that is being queued may raise StepCancelled."""


class DeviceEncoderBody(LayerByLayer):
    """An encoder's layers, and the pooling of each input's rows."""

    def __init__(
        self, model: Encoder, mode: PoolingMode, device: torch.device, memory: DeviceMemory
    ) -> None:
        """`mode` says how an input's rows become its vector. `memory` is the device's."""
        super().__init__()
        self.device = device
        self._model = model
        self._pool = _POOLS[mode]
        self._memory = memory
        self._uploads = Uploads(device)

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        return self.compute(inputs_of(works, slots, self._model.config))

    def compute(self, inputs: Inputs) -> Hidden:
        try:
            rows = self._model.hidden(
                inputs.tokens, inputs.types, inputs.lengths, self._count_layer
            )
            lengths = np.array(inputs.lengths, dtype=np.int32)
            starts, counts = self._uploads.send([np.cumsum(lengths) - lengths, lengths])
            return Hidden(self._pool(rows, starts, counts), rows)
        except torch.OutOfMemoryError:
            self._memory.release()
            raise


def _first_rows(rows: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    return rows.index_select(0, starts).float()


def _last_rows(rows: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    return rows.index_select(0, starts + lengths - 1).float()


_POOLS: dict[PoolingMode, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mean": mean_rows,
    "max": max_rows,
    "cls": _first_rows,
    "last": _last_rows,
}


class DeviceDecoderBody:
    """A decoder's layers and its last norm."""

    def __init__(self, forward: DeviceForward) -> None:
        """`forward` has the model's last norm in place of its head, so that its "logits" are hidden
        vectors."""
        self.device = forward.device
        self._forward = forward

    @property
    def layers_done(self) -> int:
        return self._forward.layers_done

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        batch = prepare_inputs(works, slots)
        vectors = self._forward.logits(batch, np.cumsum(batch.counts) - 1)
        return Hidden(vectors.float(), None)

    def cancel(self) -> None:
        self._forward.cancel()
