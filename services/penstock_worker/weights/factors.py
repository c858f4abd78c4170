"""Factors of matrices' rows, which a model's code multiplies by in addition to its weights, or
which make a row's length 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.errors import UnsupportedModel
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import RowFactors
from penstock_worker.quantisation.checkpoints.matrix import CheckpointMatrix
from penstock_worker.quantisation.interface import BF16, F16, F32
from penstock_worker.weights.stored import (
    BlockMatrix,
    CheckpointTensor,
    StoredTensor,
    as_checkpoint,
)

if TYPE_CHECKING:
    from torch import Tensor

SHORTEST = 1e-12
"""What a row is divided by at least, as torch's normalize has it."""
PLAIN = (F32.name, BF16.name, F16.name)


def multiply_rows(tensors: dict[str, StoredTensor], config: ModelConfig) -> None:
    """Multiplies the tensors that layers have factors of, by our names. Modifies `tensors`. Raises
    UnsupportedModel for a tensor of other rows."""
    for number in range(config.num_layers):
        for factors in config.layer(number).weight_factors:
            for kind in ("weight", "bias"):
                name = f"layers.{number}.{factors.module}.{kind}"
                if name in tensors:
                    tensors[name] = _multiplied(as_checkpoint(tensors[name]), factors)


def _multiplied(stored: StoredTensor, factors: RowFactors) -> StoredTensor:
    counts, values = zip(*factors.parts, strict=True)
    by_row = np.repeat(np.array(values, np.float32), counts)
    if isinstance(stored, CheckpointTensor) and stored.shape[:1] == by_row.shape:
        return CheckpointTensor.of(ScaledRows.of(stored.quantised, by_row), stored.name)
    if stored.shape[:1] != by_row.shape or stored.format not in PLAIN:
        raise UnsupportedModel(
            f"tensor {stored.name} has shape {stored.shape} in the format {stored.format}; "
            f"{len(by_row)} rows in one of {', '.join(PLAIN)} are expected, which are multiplied"
        )
    made = partial(_product, stored, by_row)
    return replace(stored, format=F32.name, made=made)


def _product(stored: StoredTensor, by_row: np.ndarray, data: np.ndarray) -> np.ndarray:
    """The bytes of the float32 product. data: the tensor's bytes in the file."""
    numbers = data if stored.made is None else stored.made(data)
    if stored.format == BF16.name:
        floats = (numbers.view("<u2").astype("<u4") << 16).view("<f4")
    else:
        floats = numbers.view("<f4" if stored.format == F32.name else "<f2").astype("<f4")
    return (floats.reshape(len(by_row), -1) * by_row[:, None]).view(np.uint8).reshape(-1)


@dataclass(frozen=True)
class ScaledRows(CheckpointMatrix):
    """A quantised matrix whose rows are multiplied by a factor each."""

    inner: CheckpointMatrix
    factors: np.ndarray
    """[outputs] float32."""

    @staticmethod
    def of(inner: CheckpointMatrix, factors: np.ndarray) -> ScaledRows:
        return ScaledRows(inner.name, inner.outputs, inner.inputs, inner.levels_are, inner, factors)

    def row_range(self, rows: range) -> ScaledRows:
        own = self.factors[rows.start : rows.stop]
        return ScaledRows.of(self.inner.row_range(rows), own)

    def values(self, rows: range, columns: range) -> Tensor:
        by_row = torch.from_numpy(self.factors[rows.start : rows.stop])
        return self.inner.values(rows, columns) * by_row[:, None]


def with_unit_rows(stored: StoredTensor) -> StoredTensor:
    """The matrix with rows divided by their lengths, as it is read. Raises UnsupportedModel for
    what is no matrix."""
    if len(stored.shape) != 2 or stored.rearrange is not None:
        raise UnsupportedModel(
            f"tensor {stored.name} has shape {stored.shape}; a matrix is expected, whose rows are "
            "divided by their lengths"
        )
    if isinstance(stored, CheckpointTensor):
        inner: CheckpointMatrix = stored.quantised
    else:
        inner = BlockMatrix.of(stored)
    return CheckpointTensor.of(UnitRows.of(inner), stored.name)


@dataclass(frozen=True)
class UnitRows(CheckpointMatrix):
    """A matrix whose rows are divided by their lengths; those of zeros stay."""

    inner: CheckpointMatrix

    @staticmethod
    def of(inner: CheckpointMatrix) -> UnitRows:
        return UnitRows(inner.name, inner.outputs, inner.inputs, inner.levels_are, inner)

    def row_range(self, rows: range) -> UnitRows:
        return UnitRows.of(self.inner.row_range(rows))

    def values(self, rows: range, columns: range) -> Tensor:
        whole = self.inner.values(rows, range(self.inputs))
        unit = torch.nn.functional.normalize(whole, eps=SHORTEST)
        return unit[:, columns.start : columns.stop]
