"""What an adapter has for each part of a model, as it lies in a place of a device's memory: bytes,
one part after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from penstock.adapters import UnfitAdapter
from penstock_worker.adapters.adaptable import EMBEDDING, HEAD
from penstock_worker.adapters.fitting import Fitted, FittedMatrix, FittedModule, ModuleParts
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.adapters.rows import RankCut

ALIGNED = 128
"""Bytes: each tensor begins at a multiple, so that kernels are compiled for one alignment only."""


def aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


@dataclass(frozen=True)
class RankPart:
    """What this rank has of a model's modules."""

    model: AdaptableModel
    cut: RankCut

    def of_matrix(self, name: str) -> tuple[range, range]:
        """Returns the outputs and inputs of a module that this rank has. Of an embedding, whose
        inputs are ids, ranks share these."""
        outputs, inputs = self.model.modules[name]
        if name == EMBEDDING:
            ids, columns = self.cut.part(f"{name}.weight", (inputs, outputs))
            return columns, ids
        rows, columns = self.cut.part(f"{name}.weight", (outputs, inputs))
        return rows, columns

    def of_whole(self, name: str) -> range:
        """Returns the rows that this rank has of a matrix that an adapter may bring whole."""
        rows, _ = self.cut.part(f"{name}.weight", self.model.whole[name])
        return rows

    def parts(self, name: str, module: FittedModule) -> ModuleParts:
        found = module.parts(*self.of_matrix(name))
        # The head's bias is added after its product; other biases are added by one rank.
        if found.added is not None and (name == HEAD or self.cut.elsewhere(f"{name}.bias")):
            return found._replace(added=torch.zeros_like(found.added))
        return found


class PlacePart(Protocol):
    """A part of a place."""

    @property
    def begin(self) -> int:
        """Bytes of the place in front of it."""

    @property
    def names(self) -> Sequence[str]:
        """Our names of its modules."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def flags(self) -> int:
        """How many numbers say whether a place has something here."""

    def changed_by(self, modules: Fitted) -> bool:
        """Returns whether an adapter has something here."""

    def pack(self, modules: Fitted, rank: RankPart, room: Tensor) -> list[int]:
        """Writes what an adapter has here into [size] uint8, all of them 0, and returns the flags.
        Raises UnfitAdapter for numbers that are too large."""


@dataclass(frozen=True)
class FactorsPart:
    """Factors of a product; or of a product of each of a layer's experts."""

    begin: int
    modules: tuple[tuple[str, ...], ...]
    """The names of each product's modules, whose outputs lie side by side."""
    sizes: tuple[int, ...]
    """How many outputs each of these has."""
    inputs: int
    rank: int
    """Ranks are padded with zeros to this one."""
    dtype: torch.dtype

    @property
    def names(self) -> list[str]:
        return [name for product in self.modules for name in product]

    @property
    def flags(self) -> int:
        """The highest rank of each product's factors, 0 if it has none."""
        return len(self.modules)

    @property
    def outputs(self) -> int:
        return sum(self.sizes)

    @property
    def size(self) -> int:
        return self._ends[-1]

    @property
    def _ends(self) -> list[int]:
        """Where A, B and gains begin, and where they end. Bytes."""
        down, up = len(self.sizes) * self.rank * self.inputs, self.outputs * self.rank
        each = (down * self.dtype.itemsize, up * self.dtype.itemsize, 2 * self.outputs * 4)
        return list(accumulate((aligned(self.flags * count) for count in each), initial=0))

    def views(self, room: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns A, [products, parts * rank, inputs], B, [products, outputs, rank], and gains,
        [products, 2, outputs] float32, of [..., size] uint8. Of the embedding, A is transposed."""
        shapes = [
            (self.dtype, (len(self.sizes) * self.rank, self.inputs)),
            (self.dtype, (self.outputs, self.rank)),
            (torch.float32, (2, self.outputs)),
        ]
        if self.modules == ((EMBEDDING,),):
            shapes[0] = (self.dtype, (self.inputs, self.rank))
        down, up, gains = (
            _typed(room[..., start:end], dtype, (self.flags, *shape))
            for (dtype, shape), (start, end) in zip(shapes, pairwise(self._ends), strict=True)
        )
        return down, up, gains

    def changed_by(self, modules: Fitted) -> bool:
        return any(isinstance(modules.get(name), FittedModule) for name in self.names)

    def pack(self, modules: Fitted, rank: RankPart, room: Tensor) -> list[int]:
        down, up, gains = self.views(room)
        gains[:, 0] = 1.0
        found = []
        for at, names in enumerate(self.modules):
            highest = 0
            for part, name in enumerate(names):
                module = modules.get(name)
                if isinstance(module, FittedModule):
                    own = rank.parts(name, module)
                    self._write(name, part, own, (down[at], up[at], gains[at]))
                    highest = max(highest, len(own.down))
            found.append(highest)
        return found

    def _write(
        self, name: str, part: int, own: ModuleParts, room: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        down, up, gains = room
        first, count = sum(self.sizes[:part]), len(own.down)
        outputs = slice(first, first + self.sizes[part])
        if name == EMBEDDING:
            self._copy(name, own.down.t(), down[:, :count])
        else:
            self._copy(name, own.down, down[part * self.rank :][:count])
        self._copy(name, own.up, up[outputs, :count])
        if own.gains is not None and own.added is not None:
            gains[0, outputs], gains[1, outputs] = own.gains, own.added

    def _copy(self, name: str, values: Tensor, into: Tensor) -> None:
        into.copy_(values)
        if not into.isfinite().all():
            raise UnfitAdapter(f"the adapter's numbers for {name} are too large")


@dataclass(frozen=True)
class MatrixPart:
    """A matrix in the place of the model's own."""

    begin: int
    name: str
    shape: tuple[int, int]
    """Rows and columns of this rank."""
    dtype: torch.dtype

    @property
    def names(self) -> list[str]:
        return [self.name]

    @property
    def flags(self) -> int:
        """Number of flags: 1, which says whether there is a matrix."""
        return 1

    @property
    def size(self) -> int:
        rows, columns = self.shape
        return aligned(rows * columns * self.dtype.itemsize)

    def view(self, room: Tensor) -> Tensor:
        """Returns [..., rows, columns] of [..., size] uint8."""
        return _typed(room, self.dtype, self.shape)

    def changed_by(self, modules: Fitted) -> bool:
        return isinstance(modules.get(self.name), FittedMatrix)

    def pack(self, modules: Fitted, rank: RankPart, room: Tensor) -> list[int]:
        module = modules.get(self.name)
        if not isinstance(module, FittedMatrix):
            return [0]
        into = self.view(room)
        into.copy_(module.part(rank.of_whole(self.name)))
        if not into.isfinite().all():
            raise UnfitAdapter(f"the adapter's numbers for {self.name} are too large")
        return [1]


def _typed(room: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Returns [..., *shape] at the beginning of [..., bytes]."""
    count = 1
    for size in shape:
        count *= size
    return room[..., : count * dtype.itemsize].view(dtype).unflatten(-1, shape)
