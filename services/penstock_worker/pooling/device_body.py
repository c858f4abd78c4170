"""What the pooling runner of a device needs from whatever computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.model_config import PoolingMode
from penstock.protocol.to_worker import SlotWork
from penstock_kernels.triton.rowwise.pool_rows import max_rows, mean_rows
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slots
from penstock_worker.device.memory import DeviceMemory
from penstock_worker.forward.interface import DeviceForward
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.forward.uploads import Uploads
from penstock_worker.pooling.encoder.model import EncoderModel
from penstock_worker.pooling.encoders import Inputs, inputs_of


@dataclass(frozen=True)
class Hidden:
    """Of one step, on the device. vectors: [works, hidden] float32, the one vector of each input
    (after a chunk: of its last token so far).  rows: [tokens, hidden], of all tokens; None where
    only the last ones are kept."""

    vectors: Tensor
    rows: Tensor | None


class DeviceBody(Protocol):
    """A model without its output head. Its work is queued on torch's current stream."""

    device: torch.device

    @property
    def layers_done(self) -> int:
        """Layers queued since the start; readable from another thread."""

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        """Queues these works, and waits for nothing. Raises torch.OutOfMemoryError."""

    def cancel(self) -> None:
        """The worker leaves: a step that is being queued may raise StepCancelled."""


class DeviceEncoderBody(LayerByLayer):
    """mode: how an input's rows become its vector.  memory: of the device."""

    def __init__(
        self, model: EncoderModel, mode: PoolingMode, device: torch.device, memory: DeviceMemory
    ) -> None:
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
    """forward: whose head is the model's last norm, so that its logits are vectors."""

    def __init__(self, forward: DeviceForward) -> None:
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
