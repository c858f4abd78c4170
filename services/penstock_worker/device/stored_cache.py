"""A device's KV cache as blocks that are kept elsewhere. Copies run concurrently with steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.process import logs
from penstock_kernels.triton.attention.block_copies import gather_blocks, scatter_blocks
from penstock_worker.device.block_copies import pin
from penstock_worker.device.side_stream import SideStream
from penstock_worker.machine.memory import free_memory
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


# Memory through which KV blocks pass between a device's cache and the host.

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
