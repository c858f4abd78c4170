"""A matrix of a quantised checkpoint, whose tensors are mapped but not read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.errors import UnsupportedModel

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CheckpointMatrix(ABC):
    """A matrix, [outputs, inputs]. Parts are read as ranges of outputs and of inputs."""

    name: str
    """The name of the module in the checkpoint, for messages."""
    outputs: int
    inputs: int
    levels_are: str
    """What the stored numbers are: WeightScheme.levels."""

    @abstractmethod
    def row_range(self, rows: range) -> CheckpointMatrix:
        """Returns neighbouring outputs of the matrix as a matrix."""

    @abstractmethod
    def values(self, rows: range, columns: range) -> Tensor:
        """Decodes a part, [rows, columns] float32. Raises UnsupportedModel for a scale that isn't
        finite."""


@dataclass(frozen=True)
class LevelMatrix(CheckpointMatrix):
    """Whole numbers with a scale and a zero point per group of inputs:
    weight = scale * (level - zero).

    The difference is exact if zero points are whole, so a weight is rounded once, to float32. (The
    libraries that write these formats compute it in the dtype of their activations.)
    """

    bits: int
    """Levels are 0 … 2^bits - 1."""
    group: int
    """Inputs of a group, which are neighbours unless there is an order."""
    order: np.ndarray | None
    """[inputs] int64: the group of each input, where these aren't neighbours (act-order)."""

    @property
    def groups(self) -> int:
        return -(-self.inputs // self.group)

    @property
    def centre(self) -> int:
        """The zero point of symmetric levels."""
        return 1 << (self.bits - 1)

    @abstractmethod
    def levels(self, rows: range, columns: range) -> np.ndarray:
        """Reads [rows, columns] uint8."""

    @abstractmethod
    def scales(self, rows: range) -> np.ndarray:
        """Reads [rows, groups] float32."""

    @abstractmethod
    def zeros(self, rows: range) -> np.ndarray:
        """Reads zero points, [rows, groups] int32, or float32 if they need not be whole."""

    def row_range(self, rows: range) -> LevelMatrix:
        return LevelRows(
            self.name,
            len(rows),
            self.inputs,
            self.levels_are,
            self.bits,
            self.group,
            self.order,
            whole=self,
            first=rows.start,
        )

    def values(self, rows: range, columns: range) -> Tensor:
        group = self._group_of(columns)
        zeros, scales = self.zeros(rows)[:, group], self.finite_scales(rows)[:, group]
        centred = self.levels(rows, columns) - zeros
        return torch.from_numpy(centred.astype(np.float32) * scales)

    def finite_scales(self, rows: range) -> np.ndarray:
        """Returns what `scales` does. Raises UnsupportedModel for NaN and infinity."""
        return finite(self.scales(rows), self.name)

    def _group_of(self, columns: range) -> np.ndarray:
        if self.order is not None:
            return self.order[columns.start : columns.stop]
        return np.arange(columns.start, columns.stop) // self.group


@dataclass(frozen=True)
class LevelRows(LevelMatrix):
    """Some rows of another matrix."""

    whole: LevelMatrix
    first: int
    """Index of the part's first row in the whole matrix."""

    def levels(self, rows: range, columns: range) -> np.ndarray:
        return self.whole.levels(shifted(rows, self.first), columns)

    def scales(self, rows: range) -> np.ndarray:
        return self.whole.scales(shifted(rows, self.first))

    def zeros(self, rows: range) -> np.ndarray:
        return self.whole.zeros(shifted(rows, self.first))


@dataclass(frozen=True)
class ScaledInputs(CheckpointMatrix):
    """A matrix whose inputs are multiplied by a factor each (the `pre_quant_scale` of AWQ and
    SmoothQuant): weights take the factors instead, rounded once more, to float32."""

    inner: CheckpointMatrix
    factors: np.ndarray
    """[inputs] float32."""

    @staticmethod
    def of(inner: CheckpointMatrix, factors: np.ndarray) -> ScaledInputs:
        return ScaledInputs(
            inner.name,
            inner.outputs,
            inner.inputs,
            inner.levels_are,
            inner,
            finite(factors, inner.name),
        )

    def row_range(self, rows: range) -> ScaledInputs:
        return ScaledInputs.of(self.inner.row_range(rows), self.factors)

    def values(self, rows: range, columns: range) -> Tensor:
        factors = torch.from_numpy(self.factors[columns.start : columns.stop])
        return self.inner.values(rows, columns) * factors


def shifted(rows: range, by: int) -> range:
    """Returns the rows, counted from another one."""
    return range(rows.start + by, rows.stop + by)


def finite(numbers: np.ndarray, name: str, kind: str = "scale") -> np.ndarray:
    """Returns the numbers. Raises UnsupportedModel for NaN and infinity."""
    if not np.isfinite(numbers).all():
        raise UnsupportedModel(f"the quantised weights of {name} have a {kind} that isn't finite")
    return numbers
