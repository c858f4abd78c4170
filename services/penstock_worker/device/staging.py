"""Memory through which KV blocks pass between a device's cache and the host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock_kernels.triton.attention.block_copies import gather_blocks, scatter_blocks
from penstock_worker.device.block_copies import pin
from penstock_worker.machine.memory import free_memory

STAGED_BYTES = 32 * 2**20
"""Bytes of blocks that one kernel gathers or scatters, at most, if that is one block or more."""
MAX_STAGED_BLOCKS = 64


def staged_blocks(block_bytes: int) -> int:
    """Returns how many blocks of this size a kernel gathers or scatters at most."""
    return max(1, min(MAX_STAGED_BLOCKS, STAGED_BYTES // block_bytes))


class Staging:
    """Rows of a block's bytes: some on the device, some in pinned memory of the host.

    A block's parts are scattered over the cache. On the device they are brought together, so that
    a block crosses the bus in one piece; several, if their rows follow each other.
    """

    def __init__(self, caches: Sequence[Tensor], device_rows: int, host_rows: int) -> None:
        """`caches`: [parts, blocks, bytes] uint8 each, as of DeviceBlockCopies. Raises StartupError
        if there is no room."""
        sizes = [cache.shape[0] * cache.shape[2] for cache in caches]
        starts = [0, *accumulate(sizes)]
        self._caches = caches
        self._device = torch.empty(
            device_rows, starts[-1], dtype=torch.uint8, device=caches[0].device
        )
        self._views = [
            self._device[:, start : start + size].unflatten(1, (cache.shape[0], cache.shape[2]))
            for cache, start, size in zip(caches, starts, sizes, strict=False)
        ]
        self._host = _pinned(host_rows, starts[-1])
        self._array = self._host.numpy()

    def host(self, row: int) -> np.ndarray:
        """Returns a view of a row in the host's memory, [bytes] uint8."""
        found: np.ndarray = self._array[row]
        return found

    def gather(self, blocks: list[int], rows: Sequence[int]) -> None:
        """Queues copies of blocks to rows of the host, through the device's first rows."""
        for cache, view in zip(self._caches, self._views, strict=True):
            gather_blocks(cache, blocks, view)
        done = 0
        for first, count in _successive(rows):
            staged = self._device[done : done + count]
            self._host[first : first + count].copy_(staged, non_blocking=True)
            done += count

    def scatter(self, first: int, blocks: list[int]) -> None:
        """Queues copies of rows of the host, from `first` on, to blocks, all different, through the
        device's rows of the same numbers."""
        rows = slice(first, first + len(blocks))
        self._device[rows].copy_(self._host[rows], non_blocking=True)
        for cache, view in zip(self._caches, self._views, strict=True):
            scatter_blocks(view[rows], cache, blocks)


def _successive(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (first, count) of rows that follow each other, in order."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        first, count = runs[-1] if runs else (row, 0)
        if first + count == row:
            runs[-1:] = [(first, count + 1)]
        else:
            runs.append((row, 1))
    return runs


def _pinned(rows: int, width: int) -> Tensor:
    free = free_memory()
    if rows * width > free:
        raise StartupError(
            f"not enough memory for {rows} KV blocks on their way to where they are kept, and back:"
            f" they take {rows * width:,} bytes, and {free:,} are free"
        )
    try:
        memory = torch.empty(rows, width, dtype=torch.uint8)
        pin(memory)
    except (MemoryError, RuntimeError) as error:
        raise StartupError(
            f"not enough memory for {rows} KV blocks on their way to where they are kept, and back:"
            f" {error}"
        ) from error
    return memory
