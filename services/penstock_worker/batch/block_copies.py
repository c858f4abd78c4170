"""Copies of whole KV blocks: within the KV cache (for a fork), and to and from the host tier."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from penstock.protocol.to_worker import Copy
from penstock_worker.batch.slots import PlanError
from penstock_worker.machine.memory import give_back_pages

_TRIALS = 4
"""Round trips that `seconds` averages."""


class Copies(Protocol):
    """Makes copies of KV blocks, at once or through a device's queue."""

    def make(self, copies: list[Copy]) -> None:
        """Makes the copies in order. Raises PlanError for a block that doesn't exist."""


class NoCopies:
    """The block copies of a model without a KV cache: there are none."""

    def make(self, copies: list[Copy]) -> None:
        """Raises PlanError if there are any copies to make."""
        if copies:
            raise PlanError("a block copy was requested, but there are no blocks")


NO_COPIES = NoCopies()


class BlockCopies:
    """Copies blocks in the CPU's memory."""

    def __init__(self, device: list[np.ndarray], host_blocks: int) -> None:
        """`device` has arrays [num_blocks, bytes] uint8, views of the KV cache; row b of all of
        them together is block b. `host_blocks` is the size of the host tier, whose memory is
        allocated here."""
        self._device = device
        self._host = [np.empty((host_blocks, part.shape[1]), dtype=np.uint8) for part in device]
        self._sizes = {"device": len(device[0]), "host": host_blocks}

    @property
    def host_blocks(self) -> int:
        """Number of blocks of the host tier."""
        return self._sizes["host"]

    @property
    def device_bytes(self) -> int:
        """Bytes of the KV cache."""
        return sum(part.nbytes for part in self._device)

    def give_back(self) -> None:
        """Gives the memory of all blocks, here and in the host tier, back to the operating system;
        their contents are lost. Raises OSError."""
        for part in (*self._device, *self._host):
            give_back_pages(part)

    def make(self, copies: list[Copy]) -> None:
        """Makes the copies in order. Raises PlanError for a block that doesn't exist."""
        for copy in copies:
            self._check("host" if copy.kind == "in" else "device", copy.source)
            self._check("host" if copy.kind == "out" else "device", copy.target)
            sources = self._host if copy.kind == "in" else self._device
            targets = self._host if copy.kind == "out" else self._device
            for source, target in zip(sources, targets, strict=True):
                target[copy.target] = source[copy.source]

    def seconds(self) -> float:
        """Returns the seconds that a block takes to the host tier and back; 0 without one.
        Overwrites block 0."""
        if not self._sizes["host"]:
            return 0.0
        there_and_back = [Copy("out", 0, 0), Copy("in", 0, 0)]
        self.make(there_and_back)  # The first run faults in new pages.
        begun = time.perf_counter()
        for _ in range(_TRIALS):
            self.make(there_and_back)
        return (time.perf_counter() - begun) / _TRIALS

    def _check(self, place: str, block: int) -> None:
        if not 0 <= block < self._sizes[place]:
            raise PlanError(f"{place} block {block} is not in [0, {self._sizes[place]})")
