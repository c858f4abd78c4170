"""Copies of KV blocks within a device, and between it and pinned host memory, queued on its
stream."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from penstock.protocol.to_worker import Copy
from penstock_kernels.triton.attention.block_copies import (
    copy_blocks,
    gather_blocks,
    scatter_blocks,
)
from penstock_worker.batch.slots import PlanError

STAGED_BLOCKS = 16
"""Blocks that one gather or scatter moves through a staging buffer on the device. A block's parts
are scattered over the cache; the buffer makes one contiguous piece of them, which crosses the bus
in one transfer."""
_TRIALS = 4
"""Round trips that `seconds` averages."""


class _CacheCopies:
    """Copies of the blocks of one cache."""

    def __init__(self, blocks: Tensor, host_blocks: int) -> None:
        parts, _, width = blocks.shape
        staged = min(STAGED_BLOCKS, host_blocks)
        self.device = blocks
        self._host = torch.empty(host_blocks, parts, width, dtype=torch.uint8)
        if blocks.device.type == "cuda" and host_blocks:
            pin(self._host)
        self._staging = torch.empty(staged, parts, width, dtype=torch.uint8, device=blocks.device)

    def within(self, pairs: list[tuple[int, int]]) -> None:
        copy_blocks(self.device, [source for source, _ in pairs], [target for _, target in pairs])

    def out(self, pairs: list[tuple[int, int]]) -> None:
        for run in _runs(pairs, len(self._staging)):
            gather_blocks(self.device, [source for source, _ in run], self._staging)
            for (_, target), staged in zip(run, self._staging, strict=False):
                self._host[target].copy_(staged, non_blocking=True)

    def back(self, pairs: list[tuple[int, int]]) -> None:
        for run in _runs(pairs, len(self._staging)):
            for (source, _), staged in zip(run, self._staging, strict=False):
                staged.copy_(self._host[source], non_blocking=True)
            scatter_blocks(self._staging[: len(run)], self.device, [target for _, target in run])


class DeviceBlockCopies:
    """BlockCopies for a device. Nothing waits: copies are queued on the current stream, so they
    come after the steps before them and before the step that follows."""

    def __init__(self, caches: Sequence[Tensor], host_blocks: int) -> None:
        """`caches` are [parts, blocks, bytes] uint8 each, views of what a block consists of; of
        each, block b is [:, b]. `host_blocks` is the size of the host tier, whose memory is
        allocated (and pinned) here.

        Raises MemoryError or torch's RuntimeError when there is no room for it.
        """
        self._caches = [_CacheCopies(blocks, host_blocks) for blocks in caches]
        self._on = caches[0].device
        self._sizes = {"device": caches[0].shape[1], "host": host_blocks}

    @property
    def host_blocks(self) -> int:
        """Number of blocks of the host tier."""
        return self._sizes["host"]

    @property
    def device_bytes(self) -> int:
        """Bytes of the KV cache on the device."""
        return sum(cache.device.nbytes for cache in self._caches)

    @torch.inference_mode()
    def make(self, copies: list[Copy]) -> None:
        """Queues the copies in order. Raises PlanError for a block that doesn't exist, before
        anything is copied."""
        for copy in copies:
            self._check("host" if copy.kind == "in" else "device", copy.source)
            self._check("host" if copy.kind == "out" else "device", copy.target)
        for kind, run in groupby(copies, key=lambda copy: copy.kind):
            pairs = [(copy.source, copy.target) for copy in run]
            for cache in self._caches:
                {"device": cache.within, "out": cache.out, "in": cache.back}[kind](pairs)

    def rehearse(self) -> None:
        """Queues copies of block 0 onto itself, so that their kernels are compiled; those to and
        from the host tier are by `seconds`."""
        self.make([Copy("device", 0, 0)])

    def seconds(self) -> float:
        """Returns the seconds that a block takes to the host and back; 0 without a host tier.
        Overwrites block 0, and waits for the device."""
        if not self._sizes["host"]:
            return 0.0
        there_and_back = [Copy("out", 0, 0), Copy("in", 0, 0)]
        self.make(there_and_back)  # The first run compiles the kernels.
        self._wait()
        begun = time.perf_counter()
        for _ in range(_TRIALS):
            self.make(there_and_back)
        self._wait()
        return (time.perf_counter() - begun) / _TRIALS

    def _wait(self) -> None:
        if self._on.type == "cuda":
            torch.cuda.synchronize(self._on)

    def _check(self, place: str, block: int) -> None:
        if not 0 <= block < self._sizes[place]:
            raise PlanError(f"{place} block {block} is not in [0, {self._sizes[place]})")


def _runs(pairs: list[tuple[int, int]], most: int) -> list[list[tuple[int, int]]]:
    """Splits the pairs into runs of at most `most`, none of which has a target twice, since the
    last copy to a target must win."""
    runs: list[list[tuple[int, int]]] = []
    for pair in pairs:
        if not runs or len(runs[-1]) == most or pair[1] in {target for _, target in runs[-1]}:
            runs.append([])
        runs[-1].append(pair)
    return runs


def pin(memory: Tensor) -> None:
    """Pins memory in place. torch's own pinned allocations are rounded up to a power of two, up to
    twice what was asked for. Raises RuntimeError if the system doesn't allow so much to be
    pinned."""
    runtime = torch.cuda.cudart()
    error = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if int(error):
        raise RuntimeError(f"{memory.nbytes:,} bytes can't be pinned: {error}")
    weakref.finalize(memory, runtime.cudaHostUnregister, memory.data_ptr())
