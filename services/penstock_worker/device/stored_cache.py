"""A device's KV cache as blocks that are kept elsewhere. Copies go on beside steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from penstock_worker.device.arriving_blocks import HALVES, ArrivingBlocks, DeviceFilling
from penstock_worker.device.leaving_blocks import LeavingBlocks
from penstock_worker.device.staging import staged_blocks
from penstock_worker.stores.cache import CopiedBlock, StoredCache, check_blocks
from penstock_worker.stores.host_cache import WAITING_BYTES, HostCache

MAX_WAITING_BYTES = 2**30
"""Bytes of pinned memory for copies that wait to be written, at most."""


def stored_cache(caches: Sequence[Tensor], step_blocks: int) -> StoredCache:
    """Returns the KV cache of a forward pass of Triton's kernels, or what is to be kept of it.

    `caches`: [parts, blocks, bytes] uint8 each; block b is [:, b] of all of them together.
    `step_blocks`: that a step fills at most.
    """
    if caches[0].device.type == "cpu":  # Triton's interpreter, which computes in one thread only.
        return HostCache([part.numpy() for cache in caches for part in cache])
    return DeviceCache(caches, step_blocks)


class DeviceCache:
    """A StoredCache. A block's bytes are those that HostCache has of the same cache."""

    def __init__(self, caches: Sequence[Tensor], step_blocks: int) -> None:
        """The arguments are those of `stored_cache`."""
        self._caches = caches
        self._count = caches[0].shape[1]
        self._step_blocks = step_blocks
        self._staged = staged_blocks(sum(self.widths))

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(cache.shape[2] for cache in self._caches for _ in range(cache.shape[0]))

    @property
    def waiting_bytes(self) -> int:
        """A step's blocks come all at once."""
        step = self._step_blocks * sum(self.widths)
        return max(WAITING_BYTES, min(step, MAX_WAITING_BYTES))

    def reserve(self, copies: int) -> None:
        staged = min(self._staged, copies)
        self._leaving = LeavingBlocks(self._caches, staged, copies)
        self._arriving = ArrivingBlocks(self._caches, half_of(self._staged))
        self._rehearse()

    def copy_out(self, blocks: Sequence[int]) -> list[CopiedBlock]:
        check_blocks(blocks, self._count)
        return [*self._leaving.copy(blocks)]

    def overwriting(self, blocks: Iterable[int]) -> None:
        self._leaving.overwriting(blocks)

    def fill(self, blocks: Sequence[int]) -> DeviceFilling:
        check_blocks(blocks, self._count)
        self._leaving.overwriting(blocks)
        return self._arriving.fill()

    def settle(self) -> None:
        self._leaving.settle()
        self._arriving.settle()

    def _rehearse(self) -> None:
        """Copies block 0 out and back, so that the kernels are compiled."""
        (copy,), filling = self.copy_out([0]), self.fill([0])
        filling.write(0, bytes(copy.contents()))
        copy.release()
        filling.close()
        filling.wait()


def half_of(staged: int) -> int:
    """Returns the blocks of a half of the memory that blocks come through."""
    return max(1, staged // HALVES)


def staging_bytes(block_bytes: int) -> int:
    """Returns what a DeviceCache takes on the device, for blocks of so many bytes."""
    staged = staged_blocks(block_bytes)
    return (staged + HALVES * half_of(staged)) * block_bytes
