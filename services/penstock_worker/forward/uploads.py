"""What a step needs from the host, in one copy that nobody waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 32
"""Elements: each array begins at a multiple of 128 bytes, so that kernels are compiled for one
alignment only."""
_SMALLEST = 4096


class UploadMark(Protocol):
    """A place in the device's queue of work."""

    def record(self) -> None:
        """Be at the queue's end."""

    def query(self) -> bool:
        """Whether the device is past it, or it was never recorded."""


class AtOnce:
    """Of a device that works while it is called."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True


def mark_maker(device: torch.device) -> Callable[[], UploadMark]:
    return torch.cuda.Event if device.type == "cuda" else AtOnce


class _HostBuffer:
    """values: pinned int32.  mark: behind the last copy from it."""

    def __init__(self, size: int, device: torch.device, mark: UploadMark) -> None:
        self.values = torch.empty(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.array = self.values.numpy()
        self.mark = mark


class Uploads:
    """Copies arrays to a device through pinned host memory.

    A buffer that the device may still read is left alone and another is taken: there are as many as
    there were copies on their way at once.  marks: for tests.
    """

    def __init__(self, device: torch.device, marks: Callable[[], UploadMark] | None = None) -> None:
        self._device = device
        self._marks = marks or mark_maker(device)
        self._buffers: deque[_HostBuffer] = deque()

    def send(self, arrays: Sequence[np.ndarray], into: Tensor | None = None) -> list[Tensor]:
        """The arrays as int32 tensors of the device, one after the other in one piece of memory.

        into: that memory, int32, at least `room(arrays)`; by default, new.  Queued on the current
        stream.
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
        """Copies what `write` writes into [size] int32 to the beginning of `into`."""
        buffer = self._take(size)
        write(buffer.array[:size])
        into[:size].copy_(buffer.values[:size], non_blocking=True)
        buffer.mark.record()

    def _take(self, size: int) -> _HostBuffer:
        """The buffer that was used longest ago, if the device is through with it."""
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
    """Elements that `send` needs."""
    return places([array.size for array in arrays])[1]


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """(where each array of so many elements begins, elements of all)."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += _aligned(size)
    return starts, end


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
