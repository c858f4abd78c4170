"""A store of KV that works concurrently with steps: a thread that writes what is computed, and one
that reads.

Steps never wait for the store. What is to be kept is copied out of the KV cache, and left out where
the writer lags. It is written in the time that steps leave, unless half of what may wait does.
What is read is checked before it is copied into blocks that belong to the fetch alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from penstock.process import logs
from penstock.protocol.from_worker import FetchedKV, FoundKV
from penstock.protocol.to_worker import FetchKV, LookUpKV, Save, SaveKV, ToWorker
from penstock_worker.metrics.counts import WorkerCounts
from penstock_worker.steps.feature import StepFeature
from penstock_worker.stores.cache import Filling, StoredCache
from penstock_worker.stores.contents import Asking, WritePace
from penstock_worker.stores.interface import KVStore
from penstock_worker.stores.peers.counts import TransferCounts
from penstock_worker.stores.writer import GATHER_SECONDS, BlockWriter

log = logs.get(__name__)

CLOSE_SECONDS = 5.0

FADE = 0.9
"""The weight of the mean of seconds per block when a newer one is added to it."""

DOUBT = 0.95
"""The factor of that mean for each time that blocks were found and not read: a store that was slow
once would otherwise never be tried again."""

Tell = Callable[[FoundKV | FetchedKV], None]
"""Sends an answer to the engine core. From any thread."""


class StoreTier(StepFeature):
    """Keeps KV elsewhere, and brings it back. writer: of what is computed."""

    name = "stored KV"
    heard = (LookUpKV,)
    received = (SaveKV, FetchKV)

    def __init__(
        self,
        store: KVStore,
        cache: StoredCache,
        bytes_per_second: int,
        unwritten_bytes: int = 0,
        transfers: TransferCounts | None = None,
        pace: WritePace | None = None,
        gather_seconds: float = GATHER_SECONDS,
        asking: Asking | None = None,
    ) -> None:
        """unwritten_bytes: the most that waits to be written, if that is more than suits `cache`.
        transfers: what `store` counts of other workers; None: it knows none.  pace: which `store`
        writes at.  gather_seconds: see GATHER_SECONDS; others may wait for what is written.
        asking: how `store` asks others.  Raises StartupError if memory doesn't suffice."""
        self._asking = asking or Asking()
        self._transfers = transfers or TransferCounts()
        self._store = store
        self._cache = cache
        unwritten = max(unwritten_bytes, cache.waiting_bytes)
        most = max(1, unwritten // store.payload_bytes)
        cache.reserve(most + 1)  # One is being written.
        self.writer = BlockWriter(
            store,
            cache,
            seconds_per_block=store.payload_bytes / bytes_per_second,
            most=most,
            pace=pace or WritePace(),
            gather_seconds=gather_seconds,
        )
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._filling = threading.Lock()
        self._epoch = 0
        """The number of the session whose blocks are filled; changed and compared under
        `_filling`."""
        self._alone = False
        """Whether something may have changed what is computed."""
        self._block_seconds = 0.0
        self._unread = False
        """Whether blocks were found, and nothing was read since."""
        self._failed = False
        self._closed = False
        self._reader = threading.Thread(target=self._read, name="kv-from-store", daemon=True)
        self._reader.start()

    def hear(self, message: ToWorker, frames: Sequence[bytes], tell: Tell) -> None:
        if isinstance(message, LookUpKV):
            self.look_up(message, tell)

    def receive(self, message: ToWorker, tell: Tell) -> None:
        if isinstance(message, SaveKV):
            self.save(message.saves)
        elif isinstance(message, FetchKV):
            self.fetch(message, tell)

    def show_counts(self, counts: WorkerCounts) -> None:
        counts.disk_blocks, counts.transfers = self.blocks, self.transfers

    def before_copies(self, saves: Sequence[Save], overwritten: Iterable[int]) -> None:
        self.save(saves, overwritten)

    def save(self, saves: Sequence[Save], overwritten: Iterable[int] = ()) -> None:
        """Keeps these blocks, as they are now, where there is time and room. What is queued next
        may write to `overwritten`. From the thread that computes."""
        if not self._alone and saves:
            self.writer.save(saves)
        self._cache.overwriting(overwritten)

    def look_up(self, message: LookUpKV, tell: Tell) -> None:
        """Says how many of the blocks are kept. Returns soon. From any thread."""
        self._asked.put(lambda: self._look_up(message, tell))

    def fetch(self, message: FetchKV, tell: Tell) -> None:
        """Fills blocks, and says how many. Returns soon. From the thread that computes, after the
        message's saves and copies."""
        epoch, filling = self._epoch, self._cache.fill(message.blocks)
        self._asked.put(lambda: self._fetch(message, tell, filling, epoch))

    def blocks(self) -> dict[str, int]:
        """How many were written, left out, or found to be damaged. From any thread."""
        return {
            "written": self.writer.num_written,
            "left_out": self.writer.num_left_out,
            "damaged": self._store.num_damaged,
        }

    def transfers(self) -> TransferCounts:
        """What came from other workers, and went to them. From any thread."""
        return self._transfers

    def weights_change(self) -> None:
        if not self._alone:
            log.warning("stored KV is not used until this process restarts")
            self._alone = True
            self.reset()

    def reset(self) -> None:
        with self._filling:
            self._epoch += 1
            self._cache.settle()

    def close(self) -> None:
        with suppress(RuntimeError):  # Of a device that is lost.
            self.reset()
        self._closed = True
        self._asked.put(None)
        over = self.writer.close(CLOSE_SECONDS)
        self._reader.join(CLOSE_SECONDS)
        if over and not self._reader.is_alive():
            self._store.close()  # Else it doesn't answer, and isn't waited for.

    def _read(self) -> None:
        while (task := self._asked.get()) is not None:
            if self._closed:
                return
            task()

    def _look_up(self, message: LookUpKV, tell: Tell) -> None:
        try:
            self._asking.waits = message.waits
            count = 0 if self._alone else self._store.leading(message.keys)
        except Exception as error:
            self._fault(error)
            count = 0
        if count and message.waits:
            self._block_seconds *= DOUBT if self._unread else 1.0
            self._unread = True
        tell(FoundKV(message.fetch, count, self._block_seconds))

    def _fetch(self, message: FetchKV, tell: Tell, filling: Filling, epoch: int) -> None:
        self._unread = False
        count, seconds = self._filled(message, filling, epoch)
        if count:
            known = self._block_seconds or seconds / count
            self._block_seconds = FADE * known + (1 - FADE) * seconds / count
        tell(FetchedKV(message.fetch, count))

    def _filled(self, message: FetchKV, filling: Filling, epoch: int) -> tuple[int, float]:
        """Returns how many blocks have been filled, counted from the first, and how many seconds
        the store took. Nothing fills the others any more."""
        begun, count, reading = time.perf_counter(), 0, 0.0
        try:
            for key, block in zip(message.keys, message.blocks, strict=True):
                if time.perf_counter() - begun >= message.seconds:
                    break
                filling.await_room()
                since = time.perf_counter()
                data = self._store.read(key)
                if data is None or not self._fill(filling, block, data, epoch):
                    break
                count, reading = count + 1, reading + time.perf_counter() - since
        except Exception as error:
            self._fault(error)
            count = 0  # It isn't known which of them are there.
        try:
            with self._filling:
                if self._is_current(epoch):
                    filling.close()
            filling.wait()
        except Exception as error:
            self._fault(error)
            count = 0
        return (count if self._is_current(epoch) else 0), reading

    def _fill(self, filling: Filling, block: int, data: bytes, epoch: int) -> bool:
        """Whether the block is still the fetch's."""
        with self._filling:
            if not self._is_current(epoch):
                return False
            filling.write(block, data)
            return True

    def _is_current(self, epoch: int) -> bool:
        return not self._alone and epoch == self._epoch

    def _fault(self, error: Exception) -> None:
        """Notes an error of what should raise nothing: it ends no thread, and nothing was found or
        kept."""
        if not self._failed:
            self._failed = True
            reason = f"{type(error).__name__}: {error}"
            log.error("the KV store fails; logged once", exception=True, reason=reason)
