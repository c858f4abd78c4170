"""Adapters on a device: the factors of all that steps use lie in places of one piece of memory,
which stay where they are, so that captured steps can read them.

An adapter is packed in the host's memory when it is loaded, and copied to a place in front of the
first step that needs it, on the stream that computes. So what a step in flight still reads is never
written over, and nobody waits.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from penstock.adapters import UnfitAdapter
from penstock_kernels.triton.linear.low_rank import AdapterTiles, LowRankFactors, add_low_rank
from penstock_kernels.triton.matmul_tiles import low_rank_tiles
from penstock_worker.adapters.adaptable import adaptable_modules
from penstock_worker.adapters.fitting import Fitted, FittedModule
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.adapters.row_tiles import HostAdapterTiles, tiles_of
from penstock_worker.parallel.shard import Shard
from penstock_worker.quantisation.interface import Product, Table
from penstock_worker.weights.cut import Cut

_ALIGNED = 64
"""Numbers: each tensor of factors begins at a multiple, so that kernels are compiled for one
alignment only."""


@dataclass(frozen=True, eq=False)
class PackedAdapter:
    """An adapter in the host's memory, as it lies in a place."""

    numbers: Tensor | None
    """All factors, padded; None: it has none."""
    ranks: Tensor
    """[products] int32: the highest rank of each product's factors, 0 if it has none."""


@dataclass(frozen=True)
class _Layout:
    """Where a product's factors lie in a place."""

    parts: tuple[tuple[str, int], ...]
    """Our names of the modules whose outputs lie side by side, and how many each has."""
    inputs: int
    down: int
    """Where A begins: [parts * rank, inputs]."""
    up: int
    """Where B begins: [outputs, rank]."""

    @property
    def outputs(self) -> int:
        return sum(size for _, size in self.parts)


class DeviceAdapters:
    """A HoldsAdapters. The products that adapters may change are known once the model is loaded."""

    def __init__(
        self, shard: Shard, most: int, rank: int, dtype: torch.dtype, *, batch_invariant: bool
    ) -> None:
        """`most` adapters, of this rank at most, are loaded at a time. `dtype`: of activations, and
        of factors."""
        self.most = most
        self.tiles: AdapterTiles | None = None
        """Of the step that is being queued; None: no row has an adapter."""
        self._cut = Cut(shard)
        self._modules = adaptable_modules(shard.config)
        self._rank = -(-rank // 16) * 16
        self._dtype = dtype
        self._batch_invariant = batch_invariant
        self._layouts: list[_Layout] = []
        self._numbers = 0
        self._held: list[weakref.ref[PackedAdapter] | None] = [None] * most
        self._used = [0] * most
        self._steps = 0

    @property
    def nbytes(self) -> int:
        return self.most * self._numbers * self._dtype.itemsize

    # ---- while the model is loaded

    def adapted(self, product: Product, parts: Sequence[tuple[str, int]], inputs: int) -> Product:
        """Returns the product with what the rows' adapters add; or itself, if none can. `parts`:
        names of its modules, and the outputs of each that this rank has."""
        if not any(name in self._modules for name, _ in parts):
            return product
        down = self._room(len(parts) * self._rank * inputs)
        up = self._room(sum(size for _, size in parts) * self._rank)
        self._layouts.append(_Layout(tuple(parts), inputs, down, up))
        return DeviceAdaptedProduct(product, self, len(self._layouts) - 1)

    def embedding(self, table: Table) -> Table:
        return table

    def head(self, product: Product) -> Product:
        return product

    def _room(self, numbers: int) -> int:
        start = self._numbers
        self._numbers += -(-numbers // _ALIGNED) * _ALIGNED
        return start

    def allocate(self, device: torch.device) -> None:
        """Takes the memory of all places. Called when the model is loaded. Raises
        torch.OutOfMemoryError."""
        self._device = device
        with torch.inference_mode(False):  # Written to outside of that mode, too.
            memory = torch.zeros(self.most, self._numbers, dtype=self._dtype, device=device)
            ranks = torch.zeros(self.most, len(self._layouts), dtype=torch.int32, device=device)
        self._memory, self._ranks = memory, ranks
        self.factors = [self._views(number) for number in range(len(self._layouts))]

    def _views(self, number: int) -> LowRankFactors:
        layout, rank = self._layouts[number], self._rank
        width = len(layout.parts) * rank
        down = self._memory[:, layout.down :][:, : width * layout.inputs]
        up = self._memory[:, layout.up :][:, : layout.outputs * rank]
        return LowRankFactors(
            down.unflatten(1, (width, layout.inputs)),
            up.unflatten(1, (layout.outputs, rank)),
            self._ranks[:, number],
            tuple(size for _, size in layout.parts),
        )

    # ---- in the thread that loads adapters

    def hold(self, modules: Fitted) -> PackedAdapter:
        known = {name for layout in self._layouts for name, _ in layout.parts}
        for name in modules:
            if name not in known and not self._cut.elsewhere(f"{name}.weight"):
                raise UnfitAdapter(f"the adapter changes {name}, which is not supported on a GPU")
        pinned = self._device.type == "cuda"
        numbers = torch.zeros(self._numbers, dtype=self._dtype, pin_memory=pinned)
        ranks = torch.zeros(len(self._layouts), dtype=torch.int32, pin_memory=pinned)
        highest = [self._pack(layout, modules, numbers) for layout in self._layouts]
        ranks.copy_(torch.tensor(highest, dtype=torch.int32))
        return PackedAdapter(numbers, ranks)

    def _pack(self, layout: _Layout, modules: Fitted, numbers: Tensor) -> int:
        """Returns the highest rank."""
        highest, first = 0, 0
        for part, (name, outputs) in enumerate(layout.parts):
            own, first = first, first + outputs
            module = modules.get(name)
            if not isinstance(module, FittedModule):
                continue
            if module.lengths is not None:
                raise UnfitAdapter(
                    f"the adapter changes {name} with DoRA, which is not supported on a GPU"
                )
            rows, columns = self._cut.part(f"{name}.weight", self._modules[name])
            for matrix, begin, width in zip(
                module.factors(rows, columns),
                (layout.down + part * self._rank * layout.inputs, layout.up + own * self._rank),
                (layout.inputs, self._rank),
                strict=True,
            ):
                target = numbers[begin : begin + len(matrix) * width].view(-1, width)
                target[:, : matrix.shape[1]] = matrix
                if not target.isfinite().all():
                    raise UnfitAdapter(f"the adapter's numbers for {name} are too large")
            highest = max(highest, module.down.shape[0])
        return highest

    @property
    def blank(self) -> PackedAdapter:
        """An adapter that changes nothing, for rehearsals."""
        return PackedAdapter(None, torch.zeros(0, dtype=torch.int32))

    # ---- in the thread that queues steps

    def placed(self, batch: BatchAdapters | None) -> np.ndarray | None:
        """Returns where the adapter of each sequence lies, [sequences] int64, -1 for none, and
        queues the copies of those that lie nowhere yet. None: no sequence has one."""
        if batch is None:
            return None
        self._steps += 1
        held = cast(tuple[PackedAdapter, ...], batch.held)
        if len(held) > self.most:
            raise RuntimeError(f"a step has {len(held)} adapters; at most {self.most} are loaded")
        found = {place: each for place, each in enumerate(map(_alive, self._held)) if each in held}
        for place in found:
            self._used[place] = self._steps
        places = {id(each): place for place, each in found.items()}
        for each in held:
            if id(each) not in places:
                places[id(each)] = self._take(each)
        numbers = np.array([*(places[id(each)] for each in held), -1])
        return numbers[batch.of_sequence]

    def _take(self, adapter: PackedAdapter) -> int:
        """Copies an adapter to a place of one that is gone, or else was used longest ago."""
        gone = [_alive(each) is None for each in self._held]
        place = min(range(self.most), key=lambda place: (not gone[place], self._used[place]))
        if adapter.numbers is not None:
            self._memory[place].copy_(adapter.numbers, non_blocking=True)
            self._ranks[place].copy_(adapter.ranks, non_blocking=True)
        self._held[place] = weakref.ref(adapter)
        self._used[place] = self._steps
        return place

    def tiles_of(self, places: np.ndarray, counts: np.ndarray) -> HostAdapterTiles:
        """Lays out a step's rows. `places`: of each sequence; `counts`: rows of each."""
        rows = np.repeat(places, counts)
        adapters = len(np.unique(rows[rows >= 0]))
        shape = low_rank_tiles(len(rows), adapters, batch_invariant=self._batch_invariant)
        return tiles_of(rows, adapters, shape)

    @contextmanager
    def of(self, tiles: AdapterTiles | None) -> Iterator[None]:
        """While the context is open, products add what these rows' adapters give."""
        self.tiles = tiles
        try:
            yield
        finally:
            self.tiles = None


@dataclass(frozen=True)
class DeviceAdaptedProduct:
    """A product to which the rows' adapters are added. The others' rows stay as they are, bit by
    bit."""

    product: Product
    adapters: DeviceAdapters
    number: int
    """Among those that adapters may change."""

    def __call__(self, x: Tensor) -> Tensor:
        out, tiles = self.product(x), self.adapters.tiles
        if tiles is not None:
            add_low_rank(x, out, self.adapters.factors[self.number], tiles)
        return out


def _alive(held: weakref.ref[PackedAdapter] | None) -> PackedAdapter | None:
    return None if held is None else held()
