"""What a model asks for its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Protocol

import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock_worker.parallel.shard import Shard
from penstock_worker.weights.cut import Cut
from penstock_worker.weights.matrix import Matrix
from penstock_worker.weights.placing import CPU, placing
from penstock_worker.weights.stored import Place, StoredTensor

_SHOWN = 8
"""Names that an error lists."""


class Readable(Protocol):
    """A tensor that isn't in memory yet."""

    def read_part_into(self, out: Tensor, part: tuple[range, ...], place: Place) -> None:
        """Fill `out`, which is contiguous, with that part [rows, columns] or [rows] of it."""


class Weights:
    """Hands out each tensor of a checkpoint once, checked and converted.

    Every tensor is a fresh copy at torch's own alignment, on `device`.  UnsupportedModel names a
    tensor that is missing, of another shape, or (from `finish`) that nobody asked for.
    """

    def __init__(
        self, tensors: dict[str, StoredTensor], dtype: torch.dtype, device: torch.device = CPU
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._place = placing(device)
        self._tensors = tensors
        self._taken: set[str] = set()
        self._cut: Cut | None = None

    def cut_to(self, shard: Shard) -> Weights:
        """The weights of one rank: asked for a tensor by its whole shape, they give the rank's
        part."""
        mine = copy(self)
        mine._cut = cut = Cut(shard)
        mine._taken = self._taken | {name for name in self._tensors if cut.elsewhere(name)}
        return mine

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """One tensor. dtype: default is the model's."""
        return self.take_stacked([(name, shape)], dtype)

    def take_stacked(
        self, parts: Sequence[tuple[str, Sequence[int]]], dtype: torch.dtype | None = None
    ) -> Tensor:
        """Several tensors of equal inner sizes, one below the other: [(name, shape), ...]."""
        cuts = [self._part(name, shape) for name, shape in parts]
        rows, inner = sum(len(cut[0]) for cut in cuts), map(len, cuts[0][1:])
        out = torch.empty(rows, *inner, dtype=dtype or self.dtype, device=self.device)
        start = 0
        for (name, shape), cut in zip(parts, cuts, strict=True):
            end = start + len(cut[0])
            self.source(name, tuple(shape)).read_part_into(out[start:end], cut, self._place)
            start = end
        return out

    def take_matrix(self, parts: Sequence[tuple[str, Sequence[int]]]) -> Matrix:
        """As take_stacked, for a matrix that is multiplied with or looked up: it may stay
        quantised."""
        return self.take_stacked(parts)

    def _part(self, name: str, shape: Sequence[int]) -> tuple[range, ...]:
        if self._cut is None:
            return tuple(map(range, shape))
        return self._cut.part(name, shape)

    def ignore(self, name: str) -> None:
        """Don't complain of this tensor, if it is there: the model does without it."""
        self._taken.add(name)

    def finish(self) -> None:
        """Raises UnsupportedModel if tensors are left over: the model isn't what it seemed."""
        extra = [stored.name for name, stored in self._tensors.items() if name not in self._taken]
        if extra:
            shown = ", ".join(extra[:_SHOWN]) + (", …" if len(extra) > _SHOWN else "")
            raise UnsupportedModel(
                f"the checkpoint has {len(extra)} tensors that the model has no use for: {shown}"
            )

    def source(self, name: str, shape: tuple[int, ...]) -> Readable:
        """Where a tensor's values come from."""
        return self.stored(name, shape)

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """A tensor as the file has it, checked."""
        stored = self._tensors.get(name)
        if stored is None:
            raise UnsupportedModel(f"the checkpoint lacks the tensor {name} of shape {shape}")
        if stored.shape != shape:
            raise UnsupportedModel(
                f"tensor {stored.name} has shape {stored.shape}; the model needs {shape}"
            )
        self._taken.add(name)
        return stored
