"""Adapters in models of torch operations: which rows of the present batch have which."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch

from penstock.protocol.to_worker import Setup
from penstock_kernels.reference.linear import linear
from penstock_worker.adapters.adaptable import (
    EMBEDDING,
    HEAD,
    adapter_bytes,
    whole_bytes,
)
from penstock_worker.adapters.fitting import Fitted, FittedMatrix, FittedModule, ModuleParts
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.quantisation.interface import Product, Table

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TensorAdapter:
    """What an adapter has for this rank's part of a model, by our name of the module."""

    factors: Mapping[str, ModuleParts]
    whole: Mapping[str, Tensor]
    """Matrices, [rows, columns], in the model's dtype."""


class RankCut(Protocol):
    """Which part of a model's tensors a rank has."""

    def part(self, name: str, shape: Sequence[int]) -> tuple[range, ...]:
        """Returns the range of indices for each dimension of a tensor."""

    def elsewhere(self, name: str) -> bool:
        """Returns whether only other ranks have the tensor."""


class AllParts:
    """The cut of a single rank, which has all."""

    def part(self, name: str, shape: Sequence[int]) -> tuple[range, ...]:
        return tuple(map(range, shape))

    def elsewhere(self, name: str) -> bool:
        return False


class TorchAdapters:
    """Makes adapters of tensors for one rank of a model."""

    def __init__(
        self, model: AdaptableModel, setup: Setup, dtype: torch.dtype, cut: RankCut | None = None
    ) -> None:
        """`dtype`: the model's. `cut`: None where one rank has all."""
        self._cut = AllParts() if cut is None else cut
        self._most = setup.max_loras
        self._dtype = dtype
        self._modules = self._mine(model.modules)
        self._whole = self._mine(model.whole) if model.takes_whole else {}
        factors = adapter_bytes(self._modules, setup.max_lora_rank, number_bytes=4)
        self._bytes = factors + whole_bytes(self._whole, dtype.itemsize)

    def _mine(self, modules: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        return {
            name: shape
            for name, shape in modules.items()
            if not self._cut.elsewhere(f"{name}.weight")
        }

    @property
    def nbytes(self) -> int:
        return self._most * self._bytes

    def hold(self, modules: Fitted) -> TensorAdapter:
        factors: dict[str, ModuleParts] = {}
        whole: dict[str, Tensor] = {}
        for name, module in modules.items():
            if isinstance(module, FittedMatrix):
                if name in self._whole:
                    rows, _ = self._cut.part(f"{name}.weight", self._whole[name])
                    whole[name] = module.part(rows).to(self._dtype)
            elif name in self._modules:
                factors[name] = self._factors(name, module)
        return TensorAdapter(factors, whole)

    def _factors(self, name: str, module: FittedModule) -> ModuleParts:
        outputs, inputs = self._modules[name]
        if name == EMBEDDING:  # Its ids are what ranks share.
            ids, _ = self._cut.part(f"{name}.weight", (inputs, outputs))
            return module.parts(range(outputs), ids)
        # What is adapted is cut in one piece.
        rows, columns = self._cut.part(f"{name}.weight", (outputs, inputs))
        found = module.parts(rows, columns)
        # The head's bias is added after its product; other biases are added by one rank.
        if found.added is not None and (name == HEAD or self._cut.elsewhere(f"{name}.bias")):
            return found._replace(added=torch.zeros_like(found.added))
        return found


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

    @contextmanager
    def only(self, wanted: Tensor) -> Iterator[None]:
        """While the context is open, rows are those of the batch numbered `wanted`, [n]."""
        groups = self.groups
        found = ((adapter, torch.isin(wanted, rows).nonzero()[:, 0]) for adapter, rows in groups)
        self._own.groups = [(adapter, rows) for adapter, rows in found if len(rows)]
        try:
            yield
        finally:
            self._own.groups = groups

    def adapted(self, product: Product, parts: Sequence[tuple[str, int]], inputs: int) -> Product:
        return AdaptedProduct(product, parts, self)

    def embedding(self, table: Table) -> Table:
        return AdaptedTable(table, self)

    def head(self, product: Product) -> Product:
        return AdaptedHead(product, self)

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
            _add_factors(adapter, name, rows, x, out[:, columns])


def _add_factors(adapter: TensorAdapter, name: str, rows: Tensor, x: Tensor, out: Tensor) -> None:
    """Makes of some rows of a module's product what an adapter says."""
    parts = adapter.factors.get(name)
    if parts is not None:
        added = linear(linear(x[rows].float(), parts.down), parts.up)
        product = out[rows].float()
        if parts.gains is not None and parts.added is not None:
            product = product * parts.gains + parts.added
        out[rows] = (product + added).to(out.dtype)


@dataclass(frozen=True)
class AdaptedTable:
    """An embedding whose rows' adapters have matrices of their own, or something to add."""

    table: Table
    adapters: RowAdapters

    @property
    def rows(self) -> int:
        return self.table.rows

    def __call__(self, ids: Tensor) -> Tensor:
        out = self.table(ids)
        for adapter, rows in self.adapters.groups:
            whole, factors = adapter.whole.get(EMBEDDING), adapter.factors.get(EMBEDDING)
            if whole is not None:
                out[rows] = whole[ids[rows]]
            if factors is not None:
                added = linear(factors.down.t()[ids[rows]], factors.up)
                out[rows] = (out[rows].float() + added).to(out.dtype)
        return out


@dataclass(frozen=True)
class AdaptedHead:
    """An output head whose rows' adapters have matrices of their own, or something to add."""

    product: Product
    adapters: RowAdapters

    def __call__(self, x: Tensor) -> Tensor:
        out = self.product(x)
        for adapter, rows in self.adapters.groups:
            whole = adapter.whole.get(HEAD)
            if whole is not None:
                out[rows] = linear(x[rows].to(whole.dtype), whole).to(out.dtype)
            _add_factors(adapter, HEAD, rows, x, out)
        return out
