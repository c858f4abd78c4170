"""KV blocks that are filled on a device, beside its steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock_worker.device.side_stream import SideStream
from penstock_worker.device.staging import Staging
from penstock_worker.stores.contents import Contents

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
        """Does what StoredCache.fill does."""
        return DeviceFilling(self, self.stream.computed())

    def settle(self) -> None:
        """Does what StoredCache.settle does."""
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
