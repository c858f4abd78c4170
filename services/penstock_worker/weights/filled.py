"""Matrices of values that are shorter than keys, filled up with zeros to the size of keys: rows of
what makes values, and columns of what reads them. Attention is then like any other's, and gives the
same numbers, with zeros after those of each head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.errors import UnsupportedModel
from penstock.model.config import ModelConfig
from penstock_worker.quantisation.checkpoints.matrix import CheckpointMatrix
from penstock_worker.quantisation.interface import BF16, F16, F32
from penstock_worker.weights.stored import CheckpointTensor, StoredTensor, as_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

BYTES = {F32.name: 4, BF16.name: 2, F16.name: 2}
"""Bytes of a number of formats that can be filled up."""
ZERO = -1
"""The index of a row or column that the file lacks: there are zeros."""


def fill_values(tensors: dict[str, StoredTensor], config: ModelConfig) -> None:
    """Fills up what layers with shorter values have, by our names. Modifies `tensors`. Raises
    UnsupportedModel for a tensor of another shape."""
    for number in range(config.num_layers):
        size, own = config.layer(number).attention.value_size, config.kv_heads(number)
        at = f"layers.{number}.self_attn"
        if size is None or f"{at}.v_proj.weight" not in tensors:
            continue
        for name, heads, rows in (
            ("v_proj", own.count, True),
            ("o_proj", config.query_heads(number), False),
        ):
            if f"{at}.{name}.weight" not in tensors:
                continue
            stored = as_checkpoint(tensors[f"{at}.{name}.weight"])
            axis = 0 if rows else 1
            if len(stored.shape) != 2 or stored.shape[axis] != heads * size:
                what = "rows" if rows else "columns"
                raise UnsupportedModel(
                    f"tensor {stored.name} has shape {stored.shape}; {heads * size} {what} are "
                    f"expected, {size} for each of {heads} heads"
                )
            tensors[f"{at}.{name}.weight"] = _filled(stored, places(heads, size, own.size), axis)


def places(heads: int, size: int, wanted: int) -> np.ndarray:
    """The file's index of each number, or ZERO: [heads * wanted] int64."""
    found = np.full((heads, wanted), ZERO)
    found[:, :size] = np.arange(heads * size).reshape(heads, size)
    return found.reshape(-1)


def _filled(stored: StoredTensor, of: np.ndarray, axis: int) -> StoredTensor:
    indices = [np.arange(size) for size in stored.shape]
    indices[axis] = of
    rows, columns = indices
    if isinstance(stored, CheckpointTensor):
        inner = stored.quantised
        filled = FilledMatrix(
            inner.name, len(rows), len(columns), inner.levels_are, inner, rows, columns
        )
        return CheckpointTensor.of(filled, stored.name)
    if stored.format not in BYTES:
        raise UnsupportedModel(
            f"tensor {stored.name} has the format {stored.format}; values that are shorter than "
            f"keys are read from {', '.join(BYTES)}"
        )
    made = partial(_bytes, stored, rows, columns)
    return replace(stored, shape=(len(rows), len(columns)), made=made)


def _bytes(
    stored: StoredTensor, rows: np.ndarray, columns: np.ndarray, data: np.ndarray
) -> np.ndarray:
    """data: the tensor's bytes in the file."""
    numbers = data if stored.made is None else stored.made(data)
    cells = numbers.reshape(*stored.shape, BYTES[stored.format])
    found = np.zeros((len(rows), len(columns), cells.shape[-1]), dtype=np.uint8)
    kept = np.ix_(rows != ZERO, columns != ZERO)
    found[kept] = cells[np.ix_(rows[rows != ZERO], columns[columns != ZERO])]
    return found.reshape(-1)


@dataclass(frozen=True)
class FilledMatrix(CheckpointMatrix):
    """A quantised matrix with rows or columns of zeros between its own."""

    inner: CheckpointMatrix
    rows: np.ndarray
    """[outputs]: the row of `inner`, or ZERO."""
    columns: np.ndarray
    """[inputs]: the column of `inner`, or ZERO."""

    def row_range(self, rows: range) -> FilledMatrix:
        return replace(self, outputs=len(rows), rows=self.rows[rows.start : rows.stop])

    def values(self, rows: range, columns: range) -> Tensor:
        found = torch.zeros(len(rows), len(columns))
        own = self.rows[rows.start : rows.stop], self.columns[columns.start : columns.stop]
        kept = [np.flatnonzero(each != ZERO) for each in own]
        if all(map(len, kept)):
            at = [each[where] for each, where in zip(own, kept, strict=True)]
            spans = [range(int(each[0]), int(each[-1]) + 1) for each in at]
            inner = self.inner.values(*spans).numpy()
            found.numpy()[np.ix_(*kept)] = inner[np.ix_(*(each - each[0] for each in at))]
        return found
