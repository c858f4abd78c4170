"""Writes blocks behind the steps, which it costs nothing but a copy out of the KV cache."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from penstock import logs
from penstock.protocol.to_worker import Save
from penstock_worker.stores.contents import WritePace
from penstock_worker.stores.interface import KVStore

log = logs.get(__name__)

MAX_SPARE = 16
"""Copies' memory that is kept for the next ones: fresh memory costs more than the copy."""

GATHER_SECONDS = 0.05
"""Until the first block is written after a while without any: others come meanwhile, for which
nobody has to be woken."""

LEAST_PAUSE = 0.02
"""For which it is worth while to wait, so that no more is written in a second than may be."""

FLUSH_SECONDS = 2.0
"""At the end, for what isn't written yet."""


class BlockBytes(Protocol):
    """The KV cache's blocks as bytes: BlockCopies."""

    def read(self, block: int, into: np.ndarray) -> None: ...

    def write(self, block: int, data: bytes) -> None: ...


class BlockWriter:
    """num_written, num_left_out: blocks."""

    def __init__(
        self,
        store: KVStore,
        blocks: BlockBytes,
        *,
        seconds_per_block: float,
        most: int,
        pace: WritePace,
        gather_seconds: float,
    ) -> None:
        """seconds_per_block: that lie at least between two, in the mean.  most: blocks that wait to
        be written.  pace: which `store` writes at.  gather_seconds: see GATHER_SECONDS."""
        self.num_written = self.num_left_out = 0
        self._store, self._blocks = store, blocks
        self._seconds_per_block = seconds_per_block
        self._most = most
        self._pace = pace
        self._gather_seconds = gather_seconds
        self._next_write = 0.0
        """By time.monotonic, so that no more is written in a second than may be."""
        self._spare: deque[np.ndarray] = deque(maxlen=MAX_SPARE)
        self._unwritten: queue.SimpleQueue[tuple[bytes, np.ndarray] | None] = queue.SimpleQueue()
        self._failed = False
        self._closed = threading.Event()
        self._last_write = math.inf
        """Until when it goes on at the end, by time.monotonic."""
        self._thread = threading.Thread(target=self._write, name="kv-to-store", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Blocks that wait to be written."""
        return self._unwritten.qsize()

    def save(self, saves: Sequence[Save]) -> None:
        """Copies these blocks, for as long as there is room. From the thread that computes."""
        for save in saves:
            if self._store.has(save.key):
                continue
            if self.num_waiting >= self._most:
                self.num_left_out += 1
                continue
            payload = self._buffer()
            self._blocks.read(save.block, payload)
            self._unwritten.put((save.key, payload))

    def close(self, seconds: float) -> bool:
        """Writes for FLUSH_SECONDS what isn't written yet; whether it has ended in so many."""
        self._last_write = time.monotonic() + FLUSH_SECONDS
        self._closed.set()
        self._unwritten.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _buffer(self) -> np.ndarray:
        """Memory for a copy of a block."""
        try:
            return self._spare.pop()
        except IndexError:
            return np.empty(self._store.payload_bytes, dtype=np.uint8)

    # ---- the thread

    def _write(self) -> None:
        rested = True
        while (item := self._unwritten.get()) is not None:
            if rested:
                self._closed.wait(self._gather_seconds)
            now = time.monotonic()
            if now > self._last_write:
                return
            key, payload = item
            if not self._store.has(key):
                self._write_block(key, payload, now)
            self._spare.append(payload)
            rested = self._unwritten.empty()

    def _write_block(self, key: bytes, payload: np.ndarray, now: float) -> None:
        self._pace.behind = self.num_waiting > self._most // 2 or self._closed.is_set()
        if not self._keeps(key, payload.data):
            self.num_left_out += 1
            return
        self.num_written += 1
        self._next_write = max(self._next_write, now) + self._seconds_per_block
        pause = self._next_write - time.monotonic()
        if pause > LEAST_PAUSE:
            self._closed.wait(pause)

    def _keeps(self, key: bytes, payload: memoryview) -> bool:
        try:
            return self._store.write(key, payload)
        except Exception as error:
            if not self._failed:
                self._failed = True
                reason = f"{type(error).__name__}: {error}"
                log.error("a store of KV fails; said once", exception=True, reason=reason)
            return False
