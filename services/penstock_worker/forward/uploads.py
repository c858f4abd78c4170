"""Copies a step's host inputs to the device, in one asynchronous transfer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 32
"""In int32 elements: each array begins at a multiple of 128 bytes, so that kernels are compiled for
one alignment only."""
_SMALLEST = 4096
"""Elements of the smallest buffer."""


class UploadMark(Protocol):
    """A position in the device's queue, as a CUDA event is."""

    def record(self) -> None:
        """Moves the mark to the end of the queue."""

    def query(self) -> bool:
        """Returns whether the device has passed the mark, or it was never recorded."""


class AtOnce:
    """The mark of a device whose work is done when the call returns."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True


def mark_maker(device: torch.device) -> Callable[[], UploadMark]:
    return torch.cuda.Event if device.type == "cuda" else AtOnce


class _HostBuffer:
    """A pinned host buffer. `values` is int32; `mark` is after the last copy from it."""

    def __init__(self, size: int, device: torch.device, mark: UploadMark) -> None:
        self.values = torch.empty(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.array = self.values.numpy()
        self.mark = mark


class Uploads:
    """Copies arrays to a device through pinned host memory.

    A buffer that the device may still be reading is left alone and another is used, so there are as
    many buffers as there were copies in flight at once.
    """

    def __init__(self, device: torch.device, marks: Callable[[], UploadMark] | None = None) -> None:
        """`marks` makes the marks; tests pass their own."""
        self._device = device
        self._marks = marks or mark_maker(device)
        self._buffers: deque[_HostBuffer] = deque()

    def send(self, arrays: Sequence[np.ndarray], into: Tensor | None = None) -> list[Tensor]:
        """Returns the arrays as int32 tensors on the device, which lie one after another in one
        piece of memory. The copy is queued on the current stream.

        `into` is that memory, int32, with at least `room(arrays)` elements; by default it is
        allocated.
        """
        starts, total = places([array.size for array in arrays])
        if into is None:
            into = torch.empty(total, dtype=torch.int32, device=self._device)

        def write(memory: np.ndarray) -> None:
            for array, start in zip(arrays, starts, strict=True):
                memory[start : start + array.size] = array.reshape(-1)

        self.fill(total, write, into)
        return [
            into[start : start + array.size].view(array.shape)
            for array, start in zip(arrays, starts, strict=True)
        ]

    def fill(self, size: int, write: Callable[[np.ndarray], None], into: Tensor) -> None:
        """Copies the [size] int32 that `write` fills in to the beginning of `into`."""
        buffer = self._take(size)
        write(buffer.array[:size])
        into[:size].copy_(buffer.values[:size], non_blocking=True)
        buffer.mark.record()

    def _take(self, size: int) -> _HostBuffer:
        """Returns the least recently used buffer if the device has finished with it and it is large
        enough, otherwise a new one."""
        if self._buffers and self._buffers[0].mark.query():
            buffer = self._buffers.popleft()
            if len(buffer.values) < size:
                buffer = self._new(size)
        else:
            buffer = self._new(size)
        self._buffers.append(buffer)
        return buffer

    def _new(self, size: int) -> _HostBuffer:
        return _HostBuffer(
            max(_SMALLEST, 1 << (size - 1).bit_length()), self._device, self._marks()
        )


def room(arrays: Sequence[np.ndarray]) -> int:
    """Returns the number of elements that `send` needs."""
    return places([array.size for array in arrays])[1]


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Returns (start of each array, total number of elements), for arrays of these sizes."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += _aligned(size)
    return starts, end


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
