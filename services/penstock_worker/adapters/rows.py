"""Adapters in models of torch operations: which rows of the present batch have which."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.reference.linear import linear
from penstock_worker.adapters.adaptable import adaptable_modules, adapter_bytes
from penstock_worker.adapters.fitting import FittedModule
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.parallel.shard import Shard
from penstock_worker.quantisation.interface import Product
from penstock_worker.weights.cut import Cut


@dataclass(frozen=True)
class TensorAdapter:
    """An adapter's factors, by our name of the module: A [rank, inputs] and B [outputs, rank]
    times the scale, float32, of this rank's part."""

    factors: Mapping[str, tuple[Tensor, Tensor]]


class TorchAdapters:
    """Makes adapters of tensors for one rank of a model."""

    def __init__(self, shard: Shard, most: int, rank: int) -> None:
        """`most` adapters, of this rank at most, are loaded at a time."""
        self._shard = shard
        self._cut = Cut(shard)
        self._most = most
        self._modules = {
            name: shape
            for name, shape in adaptable_modules(shard.config).items()
            if not self._cut.elsewhere(f"{name}.weight")
        }
        self._bytes = adapter_bytes(self._modules, rank, number_bytes=4)

    @property
    def nbytes(self) -> int:
        return self._most * self._bytes

    def hold(self, modules: Mapping[str, FittedModule]) -> TensorAdapter:
        return TensorAdapter(
            {
                name: self._factors(name, module)
                for name, module in modules.items()
                if name in self._modules
            }
        )

    def _factors(self, name: str, module: FittedModule) -> tuple[Tensor, Tensor]:
        # What is adapted is cut in one piece.
        rows, columns = self._cut.part(f"{name}.weight", self._modules[name])
        return module.factors(rows, columns)


class RowAdapters:
    """The rows of the batch that a thread computes. Several threads may compute at once."""

    def __init__(self) -> None:
        self._own = threading.local()

    @contextmanager
    def of(self, batch: BatchAdapters | None, counts: np.ndarray) -> Iterator[None]:
        """`counts`: rows of each sequence."""
        self._own.groups = [] if batch is None else _grouped(batch, counts)
        try:
            yield
        finally:
            self._own.groups = []

    def adapted(self, product: Product, parts: Sequence[tuple[str, int]], inputs: int) -> Product:
        return AdaptedProduct(product, parts, self)

    @property
    def groups(self) -> Sequence[tuple[TensorAdapter, Tensor]]:
        """Each adapter, and its rows, int64."""
        return getattr(self._own, "groups", [])


def _grouped(batch: BatchAdapters, counts: np.ndarray) -> list[tuple[TensorAdapter, Tensor]]:
    of_row = np.repeat(batch.of_sequence, counts)
    return [
        (cast(TensorAdapter, held), torch.from_numpy(np.flatnonzero(of_row == which)))
        for which, held in enumerate(batch.held)
    ]


@dataclass(frozen=True)
class AdaptedProduct:
    """A product to which the rows' adapters are added. The others' rows stay as they are, bit by
    bit."""

    product: Product
    parts: Sequence[tuple[str, int]]
    """Our names of the modules whose outputs lie side by side, and how many each has."""
    rows: RowAdapters

    def __call__(self, x: Tensor) -> Tensor:
        out = self.product(x)
        for adapter, rows in self.rows.groups:
            self._add(adapter, rows, x, out)
        return out

    def _add(self, adapter: TensorAdapter, rows: Tensor, x: Tensor, out: Tensor) -> None:
        first = 0
        for name, outputs in self.parts:
            columns = slice(first, first + outputs)
            first += outputs
            factors = adapter.factors.get(name)
            if factors is None:
                continue
            down, up = factors
            added = linear(linear(x[rows].float(), down), up)
            out[rows, columns] = (out[rows, columns].float() + added).to(out.dtype)
