"""Copies arrays between the host and a device without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 16
"""In bytes. Triton would compile another variant of a kernel for pointers that are less aligned."""
_TYPES = {
    np.dtype(np.float64): torch.float64,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
}


class Fetched(Protocol):
    """Tensors that are being copied to the host."""

    def done(self) -> bool:
        """Returns whether `arrays` would return without waiting."""

    def arrays(self) -> list[np.ndarray]:
        """Waits for these tensors, but for nothing else, and returns them."""


class Transfers(Protocol):
    """Copies to and from one device, queued on torch's current stream."""

    def send(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        """Returns the arrays (float64, int64 or int32) on the device. They are copied together,
        from one buffer. The arrays may be modified as soon as this returns."""

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        """Queues copies of the tensors, with the contents that they have when the queue gets
        there."""


class CUDATransfers:
    """Copies through pinned memory, which torch doesn't reuse before a copy is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        packed = torch.empty(_packed_bytes(arrays), dtype=torch.uint8, pin_memory=True)
        _pack(arrays, packed.numpy())
        return _unpacked(packed.to(self._device, non_blocking=True), arrays)

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        return _CUDAFetched(tensors)


class _CUDAFetched:
    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._copies = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors
        ]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def done(self) -> bool:
        return bool(self._copied.query())

    def arrays(self) -> list[np.ndarray]:
        self._copied.synchronize()
        return [copy.numpy() for copy in self._copies]


class HostTransfers:
    """The transfers for a CPU, which pack and copy in the same way, but at once."""

    def send(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        packed = torch.empty(_packed_bytes(arrays), dtype=torch.uint8)
        _pack(arrays, packed.numpy())
        return _unpacked(packed, arrays)

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        return _HostFetched([tensor.clone() for tensor in tensors])


class _HostFetched:
    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def done(self) -> bool:
        return True

    def arrays(self) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in self._tensors]


def transfers(device: torch.device) -> Transfers:
    return CUDATransfers(device) if device.type == "cuda" else HostTransfers()


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _packed_bytes(arrays: Sequence[np.ndarray]) -> int:
    return sum(_padded(array.nbytes) for array in arrays)


def _pack(arrays: Sequence[np.ndarray], packed: np.ndarray) -> None:
    """Copies the arrays to `packed`, uint8, each at an aligned offset."""
    start = 0
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1)
        packed[start : start + flat.nbytes] = flat.view(np.uint8)
        start += _padded(flat.nbytes)


def _unpacked(packed: Tensor, like: Sequence[np.ndarray]) -> list[Tensor]:
    """Returns views of `packed`, [bytes] uint8, with the shapes and dtypes of the arrays."""
    tensors, start = [], 0
    for array in like:
        part = packed[start : start + array.nbytes]
        tensors.append(part.view(_TYPES[array.dtype]).view(array.shape))
        start += _padded(array.nbytes)
    return tensors
