"""Loaded adapters, and which slots have them.

The session's thread reads a message while the main thread still has earlier plans to compute. An
adapter is loaded at once, and unloaded only when the plans that came before that message have
begun. What a slot uses stays until the slot is released.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock.adapters import UnfitAdapter, read_adapter
from penstock.process import logs
from penstock.protocol.from_worker import AdapterFailed, AdapterReady
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork, ToWorker
from penstock.protocol.worker_resources import DropAdapter, LoadAdapter
from penstock_worker.adapters.fitting import fitted
from penstock_worker.adapters.interface import BatchAdapters, HeldAdapter, HoldsAdapters, Tell
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.batch.slots import PlanError, Slots
from penstock_worker.machine.priority import step_back
from penstock_worker.steps.feature import StepFeature
from penstock_worker.steps.torch_context import without_gradients
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from penstock_worker.forward.interface import Batch

log = logs.get(__name__)


@dataclass(frozen=True)
class AdapterBounds:
    """The settings of the same names."""

    max_loras: int
    max_lora_rank: int


class _ChangedFiles(UnfitAdapter):
    """A copy that isn't what it was when its digest was made: somebody may restore it."""


@dataclass
class _Entry:
    """An adapter that is being loaded, or is."""

    digest: str
    held: HeldAdapter | None = None


class SlotAdapters(StepFeature):
    """Loads adapters in a thread, and knows which slots have which."""

    name = "adapters"
    heard = (LoadAdapter, DropAdapter)
    received = (DropAdapter,)

    def __init__(
        self,
        holds: HoldsAdapters,
        model: AdaptableModel,
        bounds: AdapterBounds,
        weights: Callable[[], Weights] | None = None,
    ) -> None:
        """`model`: as a whole; so are `weights`, which are opened when an adapter needs them."""
        self._weights = weights
        self._holds = holds
        self._model = model
        self._bounds = bounds
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._leaving: deque[_Entry | None] = deque()
        self._slots: dict[int, _Entry] = {}
        self._reader = ThreadPoolExecutor(1, "adapter-reader", step_back)

    def hear(self, message: ToWorker, frames: Sequence[bytes], tell: Tell) -> None:
        if isinstance(message, LoadAdapter):
            self.load(message, tell)
        elif isinstance(message, DropAdapter):
            self.leave(message)

    def receive(self, message: ToWorker, tell: Tell) -> None:
        self.drop()

    def load(self, message: LoadAdapter, tell: Tell) -> None:
        """Returns soon; `tell` is called from this thread or another. In the session's thread."""
        entry = _Entry(message.adapter)
        with self._lock:
            leaving = {id(each) for each in self._leaving}
            kept = [each for each in self._entries.values() if id(each) not in leaving]
            full = len(kept) >= self._bounds.max_loras
            if not full:
                self._entries[message.adapter] = entry
        if full:
            most = self._bounds.max_loras
            tell(AdapterFailed(message.adapter, f"{most} adapters are loaded (max_loras)"))
            return
        self._reader.submit(self._load, entry, Path(message.path), tell)

    def leave(self, message: DropAdapter) -> None:
        """The message has come, and `drop` will be called when the plans before it have begun. In
        the session's thread."""
        with self._lock:
            self._leaving.append(self._entries.get(message.adapter))

    def drop(self) -> None:
        """Forgets the adapter of the first `leave` that was not followed by `drop` yet."""
        with self._lock:
            entry = self._leaving.popleft() if self._leaving else None
            if entry is not None:
                self._forget(entry)

    def reset(self) -> None:
        with self._lock:
            self._entries.clear()
            self._leaving.clear()
        self._slots.clear()

    def close(self) -> None:
        self.reset()
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _forget(self, entry: _Entry) -> None:
        if self._entries.get(entry.digest) is entry:
            del self._entries[entry.digest]

    def _load(self, entry: _Entry, path: Path, tell: Tell) -> None:
        begun = time.monotonic()
        with self._lock:
            wanted = self._entries.get(entry.digest) is entry
        if not wanted:  # It was dropped, or its session has ended; others need not wait for it.
            tell(AdapterFailed(entry.digest, "it was removed before it was loaded"))
            return
        try:
            held = self._read(entry.digest, path)
        except _ChangedFiles as error:
            self._failed(entry, str(error), tell)
        except UnfitAdapter as error:
            self._failed(entry, str(error), tell, unfit=True)
        except Exception as error:
            log.error("an adapter can't be loaded", exception=True)
            self._failed(entry, f"it can't be loaded ({type(error).__name__})", tell)
        else:
            entry.held = held
            log.info("adapter loaded", adapter=entry.digest[:12], seconds=time.monotonic() - begun)
            tell(AdapterReady(entry.digest))

    def _read(self, digest: str, path: Path) -> HeldAdapter:
        try:
            found, adapter = read_adapter(path)
        except UnfitAdapter as error:
            # The front end that named it has read it: the copy is damaged, or gone.
            raise _ChangedFiles(str(error)) from None
        if found != digest:
            raise _ChangedFiles("its files have changed since it was registered")
        modules = fitted(adapter, self._model, self._bounds.max_lora_rank, self._weights)
        with without_gradients():  # Threads don't inherit it.
            return self._holds.hold(modules)

    def _failed(self, entry: _Entry, reason: str, tell: Tell, *, unfit: bool = False) -> None:
        with self._lock:
            self._forget(entry)
        tell(AdapterFailed(entry.digest, reason, unfit))

    def take(self, plan: Plan) -> None:
        """Follows the plan's releases and admissions. Raises PlanError for an adapter that isn't
        loaded."""
        for slot in plan.released:
            self._slots.pop(slot, None)
        for new in plan.admitted:
            entry = self._entry_of(new)
            if entry is not None:
                self._slots[new.slot] = entry

    def _entry_of(self, new: NewSequence) -> _Entry | None:
        if new.like is not None:
            return self._slots.get(new.like)
        if not new.adapter:
            return None
        with self._lock:
            entry = self._entries.get(new.adapter)
        if entry is None or entry.held is None:
            raise PlanError(f"slot {new.slot}: adapter {new.adapter} is not loaded")
        return entry

    def ordered(self, scheduled: list[SlotWork]) -> list[SlotWork]:
        """Returns the works with those of one adapter together, so that its factors are read once
        for all of them."""
        if not self._slots:
            return scheduled

        def digest(work: SlotWork) -> str:
            entry = self._slots.get(work.slot)
            return "" if entry is None else entry.digest

        return sorted(scheduled, key=digest)

    def held_by(self, slot: int) -> HeldAdapter | None:
        """Returns a slot's adapter; None if it has none."""
        entry = self._slots.get(slot)
        return None if entry is None else entry.held

    def extend(self, batch: Batch, scheduled: Sequence[SlotWork], slots: Slots) -> Batch:
        adapters = self.of_batch(scheduled)
        return batch if adapters is None else replace(batch, adapters=adapters)

    def of_batch(self, scheduled: Sequence[SlotWork]) -> BatchAdapters | None:
        """Returns the adapters of a batch of these works; None if there are none."""
        if not self._slots:
            return None
        places: dict[int, int] = {}
        held: list[HeldAdapter] = []
        which = np.full(len(scheduled), -1, dtype=np.int64)
        for at, work in enumerate(scheduled):
            entry = self._slots.get(work.slot)
            if entry is None or entry.held is None:
                continue
            if id(entry) not in places:
                places[id(entry)] = len(held)
                held.append(entry.held)
            which[at] = places[id(entry)]
        return BatchAdapters(tuple(held), which) if held else None
