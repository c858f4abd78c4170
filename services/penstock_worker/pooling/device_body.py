"""The interface between pooling steps and the model on a device with a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.model.pooling_config import PoolingMode
from penstock.protocol.to_worker import SlotWork
from penstock_kernels.triton.rowwise.pool_rows import max_rows, mean_rows
from penstock_worker.adapters.device_adapters import DeviceAdapters
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slots
from penstock_worker.device.memory import DeviceMemory
from penstock_worker.forward.interface import DeviceForward
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.forward.uploads import Uploads
from penstock_worker.pooling.adapters import PoolAdapters
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
        self,
        model: Encoder,
        mode: PoolingMode,
        device: torch.device,
        memory: DeviceMemory,
        adapters: PoolAdapters | None = None,
        layers: DeviceAdapters | None = None,
    ) -> None:
        """`mode` says how an input's rows become its vector. `memory` is the device's. `adapters`:
        those of inputs, which `layers` adds to the model's products; None if there never are
        any."""
        super().__init__()
        self._adapters = adapters or PoolAdapters()
        self._layers = layers
        self.device = device
        self._model = model
        self._pool = _POOLS[mode]
        self._memory = memory
        self._uploads = Uploads(device)

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        inputs = inputs_of(works, slots, self._model.config)
        return self.compute(inputs, self._adapters.of_batch(works))

    def rows(self, works: list[SlotWork], slots: Slots) -> Tensor:
        """Queues these works. Returns the vectors of all tokens, [tokens, hidden]. Raises
        torch.OutOfMemoryError."""
        inputs = inputs_of(works, slots, self._model.config)
        with self._releasing():
            return self._layers_of(inputs, self._adapters.of_batch(works))

    def compute(self, inputs: Inputs, adapters: BatchAdapters | None = None) -> Hidden:
        """`adapters`: those of the inputs. Raises torch.OutOfMemoryError."""
        lengths = np.array(inputs.lengths, dtype=np.int32)
        with self._releasing():
            rows = self._layers_of(inputs, adapters)
            starts, counts = self._uploads.send([np.cumsum(lengths) - lengths, lengths])
            return Hidden(self._pool(rows, starts, counts), rows)

    def count_layer(self) -> None:
        """Counts a layer that was queued beside the model's. Raises StepCancelled."""
        self._count_layer()

    def _layers_of(self, inputs: Inputs, adapters: BatchAdapters | None) -> Tensor:
        with self._adding(adapters, np.array(inputs.lengths, dtype=np.int32)):
            return self._model.hidden(
                inputs.tokens, inputs.types, inputs.lengths, self._count_layer
            )

    @contextmanager
    def _releasing(self) -> Iterator[None]:
        """Gives memory back where there isn't enough of it."""
        try:
            yield
        except torch.OutOfMemoryError:
            self._memory.release()
            raise

    def _adding(
        self, adapters: BatchAdapters | None, lengths: np.ndarray
    ) -> AbstractContextManager[None]:
        """While the context is open, products add the adapters of inputs of these lengths."""
        layers = self._layers
        places = None if layers is None else layers.placed(adapters)
        if layers is None or places is None:
            return nullcontext()
        tiles = layers.tiles_of(places, lengths)
        return layers.of(tiles.on_device(self._uploads.send(tiles.arrays)))


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

    def __init__(self, forward: DeviceForward, adapters: PoolAdapters | None = None) -> None:
        """`forward` has the model's last norm in place of its head, so that its "logits" are hidden
        vectors. `adapters`: those of sequences."""
        self._adapters = adapters or PoolAdapters()
        self.device = forward.device
        self._forward = forward

    @property
    def layers_done(self) -> int:
        return self._forward.layers_done

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        batch = replace(prepare_inputs(works, slots), adapters=self._adapters.of_batch(works))
        vectors = self._forward.logits(batch, np.cumsum(batch.counts) - 1)
        return Hidden(vectors.float(), None)

    def cancel(self) -> None:
        self._forward.cancel()
