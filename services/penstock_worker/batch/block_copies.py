"""Copies of whole KV blocks: within the pool (a fork), and to and from the host tier."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from penstock.protocol.to_worker import Copy
from penstock_worker.batch.slots import PlanError

_TRIALS = 4


class Copies(Protocol):
    """Copies of KV blocks, made at once or by a device's queue."""

    def make(self, copies: list[Copy]) -> None:
        """In order. Raises PlanError for a block that doesn't exist."""


class NoCopies:
    """Of a model without KV."""

    def make(self, copies: list[Copy]) -> None:
        """Raises PlanError for any."""
        if copies:
            raise PlanError("blocks are to be copied, and there are none")


NO_COPIES = NoCopies()


class BlockCopies:
    """device: arrays [num_blocks, bytes] uint8, views of the KV cache: row b of all of them
    together is block b.  host_blocks: of the host tier, whose memory is allocated here."""

    def __init__(self, device: list[np.ndarray], host_blocks: int) -> None:
        self._device = device
        self._host = [np.empty((host_blocks, part.shape[1]), dtype=np.uint8) for part in device]
        self._sizes = {"device": len(device[0]), "host": host_blocks}

    @property
    def host_blocks(self) -> int:
        """Blocks of the host tier."""
        return self._sizes["host"]

    @property
    def device_bytes(self) -> int:
        """Of the pool itself."""
        return sum(part.nbytes for part in self._device)

    def make(self, copies: list[Copy]) -> None:
        """One after the other, in order. Raises PlanError for a block that doesn't exist."""
        for copy in copies:
            self._check("host" if copy.kind == "in" else "device", copy.source)
            self._check("host" if copy.kind == "out" else "device", copy.target)
            sources = self._host if copy.kind == "in" else self._device
            targets = self._host if copy.kind == "out" else self._device
            for source, target in zip(sources, targets, strict=True):
                target[copy.target] = source[copy.source]

    def seconds(self) -> float:
        """What a block takes to the host and back; 0 without a host tier. Overwrites block 0."""
        if not self._sizes["host"]:
            return 0.0
        there_and_back = [Copy("out", 0, 0), Copy("in", 0, 0)]
        self.make(there_and_back)  # The first touches new memory.
        begun = time.perf_counter()
        for _ in range(_TRIALS):
            self.make(there_and_back)
        return (time.perf_counter() - begun) / _TRIALS

    def _check(self, place: str, block: int) -> None:
        if not 0 <= block < self._sizes[place]:
            raise PlanError(f"{place} block {block} is not in [0, {self._sizes[place]})")
