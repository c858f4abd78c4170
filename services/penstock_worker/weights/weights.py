"""Hands out a checkpoint's tensors to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import torch

from penstock.errors import UnsupportedModel
from penstock.process import logs
from penstock_worker.parallel.shard import Shard
from penstock_worker.quantisation.interface import KeptMatrix
from penstock_worker.weights.cut import Cut
from penstock_worker.weights.placing import is_nowhere, placing
from penstock_worker.weights.stored import Place, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

log = logs.get(__name__)


@dataclass(frozen=True)
class Stacked:
    """Pieces of different types, stacked by rows. Unquantised pieces have the dtype of the
    computation, except those that were quantised and had to be unpacked, which are float32."""

    pieces: tuple[Tensor | KeptMatrix, ...]


Matrix: TypeAlias = "Tensor | KeptMatrix | Stacked"
"""[outputs, inputs]. A plain tensor has the dtype of the computation."""


def plain(matrix: Matrix) -> Tensor:
    """Returns the matrix as a tensor, for kernels that know no other kind. Raises TypeError if it
    isn't one."""
    if isinstance(matrix, torch.Tensor):
        return matrix
    raise TypeError(f"a {type(matrix).__name__} is no plain tensor; was it meant to be unpacked?")


def rows_of(piece: Tensor | KeptMatrix) -> int:
    return piece.shape[0] if isinstance(piece, torch.Tensor) else piece.outputs


_INTEGERS = {"I64": "<i8", "I32": "<i4"}
"""Types of whole numbers, and what numpy calls them."""
_MOST_NAMES = 8
"""Most names that an error lists."""


class Readable(Protocol):
    """A tensor that isn't in memory yet."""

    def read_part_into(self, out: Tensor, part: tuple[range, ...], place: Place) -> None:
        """Fills `out`, which is contiguous, with the part [rows, columns] or [rows] of the
        tensor."""


class Weights:
    """Hands out each tensor of a checkpoint once, checked and converted.

    Every tensor is a fresh copy with torch's own alignment, of `dtype` (None: float32) and on
    `device` (None: the CPU); nowhere, nothing is read. What `array` gives needs no torch.
    UnsupportedModel names a tensor that is missing, has another shape or a type that can't be read,
    or (in `finish`) was not taken.
    """

    def __init__(
        self,
        tensors: dict[str, StoredTensor],
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._place = placing(device)
        self._tensors = tensors
        self._taken: set[str] = set()
        self._cut: Cut | None = None
        self._named: Callable[[str], str] = str

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of tensors that are asked for without one."""
        return torch.float32 if self._dtype is None else self._dtype

    @property
    def device(self) -> torch.device:
        """Where tensors are."""
        return torch.device("cpu") if self._device is None else self._device

    def calling(self, named: Callable[[str], str]) -> Weights:
        """Says how the file calls tensors that it lacks: named maps our names."""
        self._named = named
        return self

    def cut_to(self, shard: Shard) -> Weights:
        """Returns the weights of one rank: a tensor is still asked for by its whole shape, but only
        the rank's part of it is returned."""
        mine = copy(self)
        mine._cut = cut = Cut(shard)
        mine._taken = self._taken | {name for name in self._tensors if cut.elsewhere(name)}
        return mine

    def part(self, prefix: str) -> Weights:
        """Returns the weights whose names begin so, by their names without it. Here they count as
        taken."""
        inner = copy(self)
        inner._tensors = {
            name.removeprefix(prefix): each
            for name, each in self._tensors.items()
            if name.startswith(prefix)
        }
        inner._taken = set()
        inner._named = lambda name: self._named(prefix + name)
        self.ignore_those(lambda name: name.startswith(prefix))
        return inner

    def with_tensors(self, tensors: dict[str, StoredTensor]) -> Weights:
        """Returns the weights with some tensors replaced or added."""
        other = copy(self)
        other._tensors = self._tensors | tensors
        other._taken = set(self._taken)
        return other

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """Returns one tensor. `dtype` defaults to the model's."""
        return self.take_stacked([(name, shape)], dtype)

    def take_stacked(
        self, parts: Sequence[tuple[str, Sequence[int]]], dtype: torch.dtype | None = None
    ) -> Tensor:
        """Returns several tensors, [(name, shape), ...], stacked by rows. Their other dimensions
        are equal."""
        cuts = [self.ranges(name, shape) for name, shape in parts]
        # Shapes are checked before memory is taken for them: a config may claim any.
        sources = [self.source(name, tuple(shape)) for name, shape in parts]
        rows = sum(_count(cut[0]) for cut in cuts)
        inner = map(_count, cuts[0][1:])
        out = torch.empty(rows, *inner, dtype=dtype or self.dtype, device=self.device)
        if is_nowhere(self._device):
            return out
        start = 0
        for source, cut in zip(sources, cuts, strict=True):
            for neighbours in cut[0]:
                end = start + len(neighbours)
                _read(source, out[start:end], neighbours, cut[1:], self._place)
                start = end
        return out

    def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns one tensor as a float32 array of its own; ones where nothing is read and only
        torch decodes it."""
        source = self.source(name, shape)
        if isinstance(source, StoredTensor) and self._cut is None:
            found = source.floats()
            if found is not None:
                return found
        if is_nowhere(self._device):
            return np.ones(shape, np.float32)
        return self.take(name, shape, torch.float32).cpu().numpy()

    def take_matrix(self, parts: Sequence[tuple[str, Sequence[int]]]) -> Matrix:
        """Takes what take_stacked does, for a matrix that is used for products or look-ups. It may
        stay quantised."""
        return self.take_stacked(parts)

    def take_experts(self, parts: Sequence[tuple[str, Sequence[int]]]) -> Matrix:
        """Takes what take_matrix does, for matrices of a mixture of experts. Their kernels leave
        activations unquantised."""
        return self.take_matrix(parts)

    def take_table(self, name: str, shape: Sequence[int]) -> Tensor:
        """Returns a tensor of whole numbers, int64."""
        stored = self.of_any_type(name, tuple(shape))
        if stored.format not in _INTEGERS:
            raise UnsupportedModel(
                f"tensor {stored.name} is stored as {stored.format}; {', '.join(_INTEGERS)} are"
                " allowed in a table of numbers"
            )
        if is_nowhere(self._device):
            return torch.empty(tuple(shape), dtype=torch.int64, device=self.device)
        found = stored.content.view(_INTEGERS[stored.format]).astype(np.int64)
        return torch.from_numpy(found).view(tuple(shape)).to(self.device)

    def _part(self, name: str, shape: Sequence[int]) -> tuple[range, ...]:
        if self._cut is None:
            return tuple(map(range, shape))
        return self._cut.part(name, shape)

    def ranges(self, name: str, shape: Sequence[int]) -> tuple[tuple[range, ...], ...]:
        """Returns, for each dimension of a tensor, the ranges of indices that are given out, one
        after another."""
        if self._cut is None:
            return tuple((range(size),) for size in shape)
        return self._cut.ranges(name, shape)

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """All of the checkpoint's, by our names."""
        return self._tensors

    def number(self, name: str) -> float:
        """Returns the one number of a tensor of any shape that holds just one."""
        shape = self._tensors[name].shape if name in self._tensors else ()
        stored = self.stored(name, shape if prod(shape) == 1 else ())
        if is_nowhere(self._device):
            return 0.0
        found = stored.floats()
        if found is None:
            out = torch.empty(stored.shape)
            stored.read_into(out)
            return out.item()
        return float(found.item())

    def has(self, name: str) -> bool:
        """Whether the checkpoint has the tensor."""
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that the checkpoint has a tensor in. Raises KeyError if it doesn't have it."""
        return self._tensors[name].shape

    def ignore(self, name: str) -> None:
        """Marks a tensor that the model doesn't need, so that `finish` accepts it."""
        self._taken.add(name)

    def ignore_those(self, unneeded: Callable[[str], bool]) -> None:
        """Does what `ignore` does, for all tensors whose name in our naming `unneeded` holds
        for."""
        self._taken |= {name for name in self._tensors if unneeded(name)}

    def finish(self) -> None:
        """Raises UnsupportedModel if tensors are left over, because then the model isn't what its
        configuration says. Those that add nothing are passed over: the log lists them."""
        extra = [
            stored
            for name, stored in self._tensors.items()
            if name not in self._taken and not stored.spare
        ]
        idle: list[str] = []
        used: list[str] = []
        for stored in extra:  # Pieces of one tensor have its name.
            if stored.adds_nothing:
                idle.append(stored.name)
            else:
                used.append(_with_largest(stored))
        if idle:
            log.info("tensors of zeros, which the model doesn't use", tensors=_shown(idle))
        if used:
            raise UnsupportedModel(
                f"the checkpoint has {len(used)} tensors that the model doesn't use: {_shown(used)}"
            )

    def source(self, name: str, shape: tuple[int, ...]) -> Readable:
        """Returns the source of a tensor's values."""
        return self.stored(name, shape)

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """Returns a tensor as it is in the file, after checking its shape and its type."""
        stored = self.of_any_type(name, shape)
        stored.require_readable()
        return stored

    def of_any_type(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """Returns what `stored` does, for callers that decode the numbers themselves."""
        stored = self._tensors.get(name)
        if stored is None:
            raise UnsupportedModel(
                f"the checkpoint lacks the tensor {self._named(name)} of shape {shape}"
            )
        if stored.shape != shape:
            raise UnsupportedModel(
                f"tensor {stored.name} has shape {stored.shape}; the model needs {shape}"
            )
        self._taken.add(name)
        return stored


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")


def _with_largest(stored: StoredTensor) -> str:
    """A tensor's name, and the largest value of a bias: it says whether the bias matters."""
    if not stored.plain or not stored.name.endswith("bias"):
        return stored.name
    values = torch.empty(stored.shape)
    stored.read_into(values)
    return f"{stored.name} (values up to {values.abs().max().item():.3g})"


def _read(
    source: Readable, out: Tensor, rows: range, rest: tuple[tuple[range, ...], ...], place: Place
) -> None:
    """Reads neighbouring rows. `rest`: the ranges of the other dimensions; there are several in a
    matrix only."""
    if all(len(ranges) == 1 for ranges in rest):
        source.read_part_into(out, (rows, *(ranges[0] for ranges in rest)), place)
        return
    ((*columns,),) = rest
    at = 0
    for neighbours in columns:
        part = torch.empty(len(rows), len(neighbours), dtype=out.dtype, device=out.device)
        source.read_part_into(part, (rows, neighbours), place)
        out[:, at : at + len(neighbours)] = part
        at += len(neighbours)


def _count(ranges: Sequence[range]) -> int:
    return sum(map(len, ranges))
