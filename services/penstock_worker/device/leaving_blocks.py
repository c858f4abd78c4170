"""Copies of KV blocks that leave a device, beside its steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.process import logs
from penstock_worker.device.side_stream import SideStream
from penstock_worker.device.staging import Staging

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
        """Does what StoredCache.copy_out does."""
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
        """Does what StoredCache.overwriting does."""
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
        """Does what StoredCache.settle does."""
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
