"""What batches and backends know of adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.protocol.from_worker import AdapterFailed, AdapterReady
from penstock_worker.adapters.fitting import Fitted
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
