"""A device's KV cache as blocks that are kept elsewhere. Copies run concurrently with steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.process import logs
from penstock_worker.device.side_stream import SideStream
from penstock_worker.device.staging import Staging, staged_blocks
from penstock_worker.stores.cache import CopiedBlock, StoredCache, check_blocks
from penstock_worker.stores.contents import Contents
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


HALVES = 2
"""Parts of the staging memory: one is written while the other's blocks are on their way."""


class ArrivingBlocks:
    """Copies blocks from pinned memory into the cache, on a stream of its own. Fetches come one
    after another."""

    def __init__(self, caches: Sequence[Tensor], staged: int) -> None:
        """`staged`: blocks of a half. Raises StartupError."""
        self.stream = SideStream(caches[0].device)
        self.staged = staged
        self.staging = Staging(caches, HALVES * staged, HALVES * staged)
        self.passed: list[torch.cuda.Event | None] = [None] * HALVES
        """Marks after the latest blocks of each half."""
        self.latest: torch.cuda.Event | None = None
        """The latest of these marks."""

    def fill(self) -> DeviceFilling:
        """Begins to fill blocks (see StoredCache)."""
        return DeviceFilling(self, self.stream.computed())

    def settle(self) -> None:
        """Has steps wait until the latest blocks have been filled (see StoredCache)."""
        if self.latest is not None:
            self.stream.let_steps_wait(self.latest)


class DeviceFilling:
    """A Filling."""

    def __init__(self, arriving: ArrivingBlocks, after: torch.cuda.Event) -> None:
        """`after`: a mark after all that may still use the blocks."""
        self._arriving = arriving
        self._after = after
        self._half = 0
        self._blocks: list[int] = []
        """The blocks that the half holds."""

    def await_room(self) -> None:
        passed = self._arriving.passed[self._half]
        if not self._blocks and passed is not None:
            passed.synchronize()

    def write(self, block: int, data: Contents) -> None:
        row = self._half * self._arriving.staged + len(self._blocks)
        self._arriving.staging.host(row)[:] = np.frombuffer(data, dtype=np.uint8)
        self._blocks.append(block)
        if len(self._blocks) == self._arriving.staged:
            self.close()

    def close(self) -> None:
        if not self._blocks:
            return
        arriving, blocks, self._blocks = self._arriving, self._blocks, []
        with arriving.stream.queueing(self._after):
            try:
                arriving.staging.scatter(self._half * arriving.staged, blocks)
            finally:  # A part of it may be on its way.
                arriving.latest = arriving.passed[self._half] = arriving.stream.mark()
        self._half = (self._half + 1) % HALVES

    def wait(self) -> None:
        if self._arriving.latest is not None:
            self._arriving.latest.synchronize()


log = logs.get(__name__)


class PinnedCopy:
    """A CopiedBlock. `release` gives its row back to `free`."""

    def __init__(
        self, data: np.ndarray, row: int, arrived: torch.cuda.Event, free: deque[int]
    ) -> None:
        self._data = data
        self._row = row
        self._arrived = arrived
        self._free = free

    def contents(self) -> memoryview:
        self._arrived.synchronize()
        return self._data.data

    def release(self) -> None:
        self._free.append(self._row)


class LeavingBlocks:
    """Copies blocks to pinned memory, on a stream of its own.

    Blocks are the ones that steps work with, so two orders matter: a copy comes after what was
    queued before it, and whatever writes to its block next comes after the copy. For the second,
    the steps' stream waits only where a block is written to whose copy isn't known to be made.
    """

    def __init__(self, caches: Sequence[Tensor], staged: int, copies: int) -> None:
        """`staged`: blocks that are gathered at a time; `copies`: that may be held. Raises
        StartupError."""
        self._stream = SideStream(caches[0].device)
        self._staged = staged
        self._staging = Staging(caches, staged, copies)
        self._free = deque(range(copies))
        """Rows that hold no copy. Threads that release copies append to it."""
        self._under_way: deque[tuple[torch.cuda.Event, frozenset[int]]] = deque()
        """Marks after copies that may not have been made, and of which blocks they are."""

    def copy(self, blocks: Sequence[int]) -> list[PinnedCopy]:
        """Begins to copy blocks to the host's memory (see StoredCache.copy_out)."""
        left = list(blocks[: len(self._free)])
        made: list[PinnedCopy] = []
        if not left:
            return made
        with self._stream.queueing(self._stream.computed()):
            try:
                while left:
                    some, left = left[: self._staged], left[self._staged :]
                    made += self._copy_some(some)
            except torch.OutOfMemoryError:
                log.warning("no memory on the device for copies of KV blocks", blocks=len(blocks))
        return made

    def overwriting(self, blocks: Iterable[int]) -> None:
        """Has work that overwrites these blocks wait until they have been copied (see
        StoredCache)."""
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        if not self._under_way:
            return
        written = set(blocks)
        for made, copied in reversed(self._under_way):
            if not written.isdisjoint(copied):
                self._stream.let_steps_wait(made)  # Those before it are made by then.
                return

    def settle(self) -> None:
        """Has steps wait for the copies that are under way (see StoredCache)."""
        if self._under_way:
            self._stream.let_steps_wait(self._under_way[-1][0])

    def _copy_some(self, blocks: list[int]) -> list[PinnedCopy]:
        rows = [self._free.popleft() for _ in blocks]
        try:
            self._staging.gather(blocks, rows)
        except torch.OutOfMemoryError:
            self._stream.mark().synchronize()  # A part of it may be on its way.
            self._free.extend(rows)
            raise
        made = self._stream.mark()
        self._under_way.append((made, frozenset(blocks)))
        return [PinnedCopy(self._staging.host(row), row, made, self._free) for row in rows]
