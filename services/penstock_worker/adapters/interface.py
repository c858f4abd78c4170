"""What steps, sessions and backends know of adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.protocol.from_worker import AdapterFailed, AdapterReady
from penstock.protocol.to_worker import Plan, SlotWork
from penstock.protocol.worker_resources import DropAdapter, LoadAdapter
from penstock_worker.adapters.fitting import Fitted
from penstock_worker.batch.slots import PlanError
from penstock_worker.quantisation.interface import Product, Table

Tell = Callable[[AdapterReady | AdapterFailed], None]
"""Sends an answer to the engine core. From any thread."""


class HeldAdapter(Protocol):
    """An adapter as a backend computes with it. Read-only."""


@dataclass(frozen=True)
class BatchAdapters:
    """Which sequences of a batch have which adapter."""

    held: tuple[HeldAdapter, ...]
    """Each once."""
    of_sequence: np.ndarray
    """[sequences] int64: index in `held`; -1 for none."""

    def runs(self, counts: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """Yields (first row, rows, index in `held`) of neighbouring rows with the same adapter.
        `counts`: [sequences], rows of each."""
        row, first, current = 0, 0, -1
        for which, count in zip(self.of_sequence.tolist(), counts.tolist(), strict=True):
            if which != current:
                if current >= 0:
                    yield first, row - first, current
                first, current = row, which
            row += count
        if current >= 0:
            yield first, row - first, current


class HoldsAdapters(Protocol):
    """A backend's half."""

    @property
    def nbytes(self) -> int:
        """Bytes of all adapters that may be loaded at a time, at their largest."""

    def hold(self, modules: Fitted) -> HeldAdapter:
        """Makes of an adapter's factors what steps compute with. Raises UnfitAdapter for numbers
        that aren't finite. From any thread, while steps go on."""


class ProductAdapters(Protocol):
    """A model's half, where layers are made of products."""

    def adapted(self, product: Product, parts: Sequence[tuple[str, int]], inputs: int) -> Product:
        """Returns the product with what the rows' adapters add; or itself, if none can. Called
        while the model is loaded. `parts`: names of its modules, whose outputs lie side by side,
        and how many of each this rank has; `inputs`: how many this rank has."""

    def embedding(self, table: Table) -> Table:
        """Returns the embedding, [ids of this rank, hidden], with what the rows' adapters add; or
        itself."""

    def head(self, product: Product) -> Product:
        """Returns the output head with what the rows' adapters add; or itself, if none can."""


class StepAdapters(Protocol):
    """The adapters of all sequences. `load`, `leave`, `drop` and `reset` belong to the session; the
    others to the runner."""

    def load(self, message: LoadAdapter, tell: Tell) -> None:
        """Returns soon; `tell` is called from this thread or another. In the session's thread."""

    def leave(self, message: DropAdapter) -> None:
        """The message has come, and `drop` will be called when the plans before it have begun. In
        the session's thread."""

    def drop(self) -> None:
        """Forgets the adapter of the first `leave` that was not followed by `drop` yet."""

    def take(self, plan: Plan) -> None:
        """Follows the plan's releases and admissions. Raises PlanError for an adapter that isn't
        loaded."""

    def ordered(self, scheduled: list[SlotWork]) -> list[SlotWork]:
        """Returns the works with those of one adapter together, so that its factors are read once
        for all of them. The same on all ranks."""

    def held_by(self, slot: int) -> HeldAdapter | None:
        """Returns a slot's adapter; None if it has none."""

    def of_batch(self, scheduled: Sequence[SlotWork]) -> BatchAdapters | None:
        """Returns the adapters of a batch of these works; None if there are none."""

    def reset(self) -> None:
        """Forgets everything: a new session with the engine core begins."""

    def close(self) -> None:
        """Ends the threads."""


class NoAdapters:
    """Adapters of a worker that serves none."""

    def load(self, message: LoadAdapter, tell: Tell) -> None:
        tell(AdapterFailed(message.adapter, "this server was started without adapters"))

    def leave(self, message: DropAdapter) -> None:
        """Does nothing: no adapter was loaded."""

    def drop(self) -> None:
        """Does nothing: no adapter was loaded."""

    def take(self, plan: Plan) -> None:
        for new in plan.admitted:
            if new.adapter:
                raise PlanError(f"slot {new.slot}: adapter {new.adapter} is not loaded")

    def ordered(self, scheduled: list[SlotWork]) -> list[SlotWork]:
        return scheduled

    def held_by(self, slot: int) -> HeldAdapter | None:
        return None

    def of_batch(self, scheduled: Sequence[SlotWork]) -> BatchAdapters | None:
        return None

    def reset(self) -> None:
        """Does nothing: nothing is kept."""

    def close(self) -> None:
        """Does nothing: there are no threads."""


NO_ADAPTERS: StepAdapters = NoAdapters()
