"""Writes blocks concurrently with steps, which pay only for a copy out of the KV cache."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Sequence

from penstock.process import logs
from penstock.protocol.to_worker import Save
from penstock_worker.stores.cache import CopiedBlock, StoredCache
from penstock_worker.stores.contents import WritePace
from penstock_worker.stores.interface import KVStore

log = logs.get(__name__)

GATHER_SECONDS = 0.05
"""Seconds until the first block is written after a pause: more blocks come meanwhile without waking
the thread for each."""

LEAST_PAUSE = 0.02
"""Seconds for which it is worth while to wait, so that no more is written in a second than may
be."""

FLUSH_SECONDS = 2.0
"""Seconds for which, at the end, what isn't written yet is written."""


class BlockWriter:
    """num_written, num_left_out: blocks."""

    def __init__(
        self,
        store: KVStore,
        cache: StoredCache,
        *,
        seconds_per_block: float,
        most: int,
        pace: WritePace,
        gather_seconds: float,
    ) -> None:
        """cache: with room for one copy more than `most`.  seconds_per_block: that lie at least
        between two, in the mean.  most: blocks that wait to be written.  pace: which `store` writes
        at.  gather_seconds: see GATHER_SECONDS."""
        self.num_written = self.num_left_out = 0
        self._store, self._cache = store, cache
        self._seconds_per_block = seconds_per_block
        self._most = most
        self._pace = pace
        self._gather_seconds = gather_seconds
        self._next_write = 0.0
        """When the next block may be written, by time.monotonic, so that no more is written in a
        second than may be."""
        self._unwritten: queue.SimpleQueue[tuple[bytes, CopiedBlock] | None] = queue.SimpleQueue()
        self._failed = False
        self._closed = threading.Event()
        self._last_write = math.inf
        """Time by time.monotonic until which writing goes on at the end."""
        self._thread = threading.Thread(target=self._write, name="kv-to-store", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Blocks that wait to be written."""
        return self._unwritten.qsize()

    def save(self, saves: Sequence[Save]) -> None:
        """Copies these blocks, for as long as there is room. From the thread that computes."""
        wanted = [save for save in saves if not self._store.has(save.key)]
        room = max(0, self._most - self.num_waiting)
        copies = self._cache.copy_out([save.block for save in wanted[:room]])
        self.num_left_out += len(wanted) - len(copies)
        for save, copy in zip(wanted, copies, strict=False):
            self._unwritten.put((save.key, copy))

    def close(self, seconds: float) -> bool:
        """Writes for FLUSH_SECONDS what isn't written yet; whether it has ended in so many."""
        self._last_write = time.monotonic() + FLUSH_SECONDS
        self._closed.set()
        self._unwritten.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _write(self) -> None:
        rested = True
        while (item := self._unwritten.get()) is not None:
            if rested:
                self._closed.wait(self._gather_seconds)
            now = time.monotonic()
            if now > self._last_write:
                return
            key, copy = item
            if not self._store.has(key):
                self._write_block(key, copy, now)
            copy.release()
            rested = self._unwritten.empty()

    def _write_block(self, key: bytes, copy: CopiedBlock, now: float) -> None:
        self._pace.behind = self.num_waiting > self._most // 2 or self._closed.is_set()
        if not self._keeps(key, copy):
            self.num_left_out += 1
            return
        self.num_written += 1
        self._next_write = max(self._next_write, now) + self._seconds_per_block
        pause = self._next_write - time.monotonic()
        if pause > LEAST_PAUSE:
            self._closed.wait(pause)

    def _keeps(self, key: bytes, copy: CopiedBlock) -> bool:
        try:
            return self._store.write(key, copy.contents())
        except Exception as error:
            if not self._failed:
                self._failed = True
                reason = f"{type(error).__name__}: {error}"
                log.error("the KV store fails; logged once", exception=True, reason=reason)
            return False
