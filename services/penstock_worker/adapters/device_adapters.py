"""Adapters on a device: what steps use of them lies in places of one piece of memory, which stay
where they are, so that captured steps can read them.

An adapter is packed in the host's memory when it is loaded, and copied to a place in front of the
first step that needs it, on the stream that computes. So what a step in flight still reads is never
overwritten, and nothing waits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import numpy as np
import torch
from torch import Tensor

from penstock.adapters import UnfitAdapter
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.experts.low_rank import FactorsOfExperts
from penstock_kernels.triton.linear.low_rank import AdapterTiles, LowRankFactors
from penstock_kernels.triton.linear.own_matrices import OwnMatrices
from penstock_kernels.triton.matmul_tiles import low_rank_tiles
from penstock_worker.adapters.adaptable import EMBEDDING, HEAD
from penstock_worker.adapters.device_parts import (
    FactorsPart,
    MatrixPart,
    PlacePart,
    RankPart,
)
from penstock_worker.adapters.device_products import (
    AdaptedPlaces,
    DeviceAdaptedExperts,
    DeviceAdaptedProduct,
    DeviceAdaptedTable,
)
from penstock_worker.adapters.fitting import Fitted
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.adapters.row_tiles import HostAdapterTiles, tiles_of
from penstock_worker.adapters.rows import AllParts, RankCut
from penstock_worker.quantisation.interface import Product, Table

_Views = Callable[[Tensor, Tensor], None]
"""Tells a product where in [places, bytes] and in flags, [places, n], its part is."""


@dataclass(frozen=True, eq=False)
class PackedAdapter:
    """An adapter in the host's memory, as it lies in a place."""

    pieces: tuple[tuple[int, Tensor], ...]
    """Where in the place, in bytes, and what, uint8. What lies between them isn't read."""
    flags: Tensor | None
    """[flags of all parts] int32. None: the place stays as it is."""
    in_head: bool
    """Whether it changes the output head."""


class DeviceAdapters:
    """A HoldsAdapters. The products that adapters may change are known once the model is loaded."""

    def __init__(
        self,
        model: AdaptableModel,
        setup: Setup,
        dtype: torch.dtype,
        cut: RankCut | None = None,
    ) -> None:
        """`dtype`: of activations, and of factors. `cut`: None where one rank has all."""
        self.most = setup.max_loras
        self.tiles: AdapterTiles | None = None
        """Tiles of the step that is being queued; None: no row has an adapter."""
        self._model = model
        self._rank_part = RankPart(model, AllParts() if cut is None else cut)
        self._rank = -(-setup.max_lora_rank // 16) * 16
        self._dtype = dtype
        self._batch_invariant = setup.batch_invariant
        self._parts: list[PlacePart] = []
        self._views: list[_Views] = []
        self._size = 0
        self._flags = 0
        self._held: list[weakref.ref[PackedAdapter] | None] = [None] * self.most
        self._used = [0] * self.most
        self._steps = 0

    @property
    def nbytes(self) -> int:
        return self.most * self._size

    def adapted(self, product: Product, parts: Sequence[tuple[str, int]], inputs: int) -> Product:
        """Returns the product with what the rows' adapters add; or itself, if none can (see
        ProductAdapters)."""
        names, sizes = zip(*parts, strict=True)
        if not any(name in self._model.modules for name in names):
            return product
        places = AdaptedPlaces()
        self._add_factors(places, names, sizes, inputs)
        return DeviceAdaptedProduct(product, self, places)

    def embedding(self, table: Table) -> Table:
        if EMBEDDING not in self._model.modules:
            return table
        outputs, ids = map(len, self._rank_part.of_matrix(EMBEDDING))
        places = AdaptedPlaces()
        self._add_matrix(places, EMBEDDING, outputs)
        self._add_factors(places, (EMBEDDING,), (outputs,), ids)
        return DeviceAdaptedTable(table, self, places)

    def head(self, product: Product) -> Product:
        if HEAD not in self._model.modules:
            return product
        outputs, inputs = map(len, self._rank_part.of_matrix(HEAD))
        places = AdaptedPlaces()
        self._add_matrix(places, HEAD, inputs)
        self._add_factors(places, (HEAD,), (outputs,), inputs)
        return DeviceAdaptedProduct(product, self, places)

    def experts(
        self, names: Sequence[Sequence[str]], sizes: Sequence[int], inputs: int
    ) -> DeviceAdaptedExperts | None:
        """Returns what is added to a product of each of a layer's experts; None if nothing can be.
        `names`: for each expert, of the modules whose outputs lie side by side; `sizes`: how many
        each of these has on this rank; `inputs`: how many this rank has."""
        if not any(name in self._model.modules for each in names for name in each):
            return None
        found = DeviceAdaptedExperts(self)
        modules = tuple(tuple(each) for each in names)
        part = FactorsPart(self._size, modules, tuple(sizes), inputs, self._rank, self._dtype)

        def tell(room: Tensor, flags: Tensor) -> None:
            down, up, gains = part.views(room)
            found.factors = FactorsOfExperts(down, up, flags, part.sizes, gains)

        self._add(part, tell)
        return found

    def _add_factors(
        self, places: AdaptedPlaces, names: Sequence[str], sizes: Sequence[int], inputs: int
    ) -> None:
        part = FactorsPart(
            self._size, (tuple(names),), tuple(sizes), inputs, self._rank, self._dtype
        )
        lengths = names[0] != EMBEDDING

        def tell(room: Tensor, flags: Tensor) -> None:
            down, up, gains = (each[:, 0] for each in part.views(room))
            places.factors = LowRankFactors(
                down, up, flags[:, 0], part.sizes, gains if lengths else None
            )

        self._add(part, tell)

    def _add_matrix(self, places: AdaptedPlaces, name: str, columns: int) -> None:
        """Adds a place for a matrix, if adapters may bring it whole."""
        if not self._model.takes_whole or name not in self._model.whole:
            return
        rows = len(self._rank_part.of_whole(name))
        part = MatrixPart(self._size, name, (rows, columns), self._dtype)

        def tell(room: Tensor, flags: Tensor) -> None:
            places.matrices = OwnMatrices(part.view(room), flags[:, 0])

        self._add(part, tell)

    def _add(self, part: PlacePart, tell: _Views) -> None:
        self._parts.append(part)
        self._views.append(tell)
        self._size += part.size
        self._flags += part.flags

    def allocate(self, device: torch.device) -> None:
        """Takes the memory of all places. Called when the model is loaded. Raises
        torch.OutOfMemoryError."""
        self._device = device
        with torch.inference_mode(False):  # Written to outside of that mode, too.
            memory = torch.zeros(self.most, self._size, dtype=torch.uint8, device=device)
            flags = torch.zeros(self.most, self._flags, dtype=torch.int32, device=device)
        self._memory, self._flags_of = memory, flags
        first = 0
        for part, tell in zip(self._parts, self._views, strict=True):
            own = flags[:, first : first + part.flags]
            tell(memory[:, part.begin : part.begin + part.size], own)
            first += part.flags

    def hold(self, modules: Fitted) -> PackedAdapter:
        known = {name for part in self._parts for name in part.names}
        for name in modules:
            if name not in known and not self._elsewhere(name):
                raise UnfitAdapter(f"the adapter changes {name}, which is not supported on a GPU")
        pinned = self._device.type == "cuda"
        pieces: list[tuple[int, Tensor]] = []
        flags: list[int] = []
        # Neighbouring parts are copied together.
        for changed, found in groupby(self._parts, lambda part: part.changed_by(modules)):
            run = list(found)
            if not changed:
                flags += [0] * sum(part.flags for part in run)
                continue
            begin, end = run[0].begin, run[-1].begin + run[-1].size
            piece = torch.zeros(end - begin, dtype=torch.uint8, pin_memory=pinned)
            pieces.append((begin, piece))
            for part in run:
                room = piece[part.begin - begin :][: part.size]
                flags += part.pack(modules, self._rank_part, room)
        packed = torch.zeros(self._flags, dtype=torch.int32, pin_memory=pinned)
        packed.copy_(torch.tensor(flags, dtype=torch.int32))
        return PackedAdapter(tuple(pieces), packed, HEAD in modules)

    def _elsewhere(self, name: str) -> bool:
        """A last stage may have a copy of the embedding, which is its head's matrix."""
        return name == EMBEDDING or self._rank_part.cut.elsewhere(f"{name}.weight")

    @property
    def blank(self) -> PackedAdapter:
        """An adapter that changes nothing, for rehearsals."""
        return PackedAdapter((), None, in_head=True)

    def on_all(self, sequences: int) -> BatchAdapters:
        """Returns a blank adapter for all of so many sequences."""
        return BatchAdapters((self.blank,), np.zeros(sequences, np.int64))

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
        for begin, piece in adapter.pieces:
            self._memory[place, begin : begin + len(piece)].copy_(piece, non_blocking=True)
        if adapter.flags is not None:
            self._flags_of[place].copy_(adapter.flags, non_blocking=True)
        self._held[place] = weakref.ref(adapter)
        self._used[place] = self._steps
        return place

    def in_head(self, batch: BatchAdapters | None) -> bool:
        """Returns whether one of the batch's adapters changes the output head."""
        held = () if batch is None else cast(tuple[PackedAdapter, ...], batch.held)
        return any(each.in_head for each in held)

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


def _alive(held: weakref.ref[PackedAdapter] | None) -> PackedAdapter | None:
    return None if held is None else held()
