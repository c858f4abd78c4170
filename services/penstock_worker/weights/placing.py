"""Copies decoded chunks to a device through two pinned buffers: one is filled while the other is
being transferred."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock_worker.weights.stored import CHUNK_ELEMENTS, Place, copied

if TYPE_CHECKING:
    from torch import Tensor

NOWHERE = "meta"
"""The type of device on which tensors have shapes and no data."""


def nowhere() -> torch.device:
    """Returns the device on which tensors have shapes and no data."""
    return torch.device(NOWHERE)


def is_nowhere(device: torch.device | None) -> bool:
    """Whether nothing is read. None is the CPU."""
    return device is not None and device.type == NOWHERE


class PinnedPlacing:
    """A Place for targets on a GPU. Values are transferred in their own dtype and rounded on the
    GPU.

    Must be used by one thread, on one stream.
    """

    def __init__(self) -> None:
        size = CHUNK_ELEMENTS * torch.float32.itemsize
        self._buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in self._buffers]

    def __call__(self, target: Tensor, values: Tensor) -> None:
        """Copies `values`, which are on the CPU, to `target`, which is contiguous. Waits for a free
        buffer, but not for the transfer."""
        target, values = target.view(-1), values.reshape(-1)
        per_buffer = self._buffers[0].nbytes // values.dtype.itemsize
        for start in range(0, len(values), per_buffer):
            self._send(target[start : start + per_buffer], values[start : start + per_buffer])

    def _send(self, target: Tensor, values: Tensor) -> None:
        buffer, through = self._buffers[0], self._copied[0]
        through.synchronize()
        pinned = buffer[: values.nbytes].view(values.dtype)
        pinned.copy_(values)
        target.copy_(pinned.to(target.device, non_blocking=True))
        through.record()
        self._buffers.reverse()
        self._copied.reverse()


def placing(device: torch.device | None) -> Place:
    """Returns how chunks are copied to tensors on that device; None: the CPU."""
    return PinnedPlacing() if device is not None and device.type == "cuda" else copied
