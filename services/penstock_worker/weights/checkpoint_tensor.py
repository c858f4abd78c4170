"""A matrix of a quantised checkpoint among a model's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock_worker.quantisation.checkpoints.matrix import CheckpointMatrix
from penstock_worker.weights.stored import CHUNK_ELEMENTS, Place, StoredTensor


@dataclass(frozen=True)
class CheckpointTensor(StoredTensor):
    """A tensor of a quantised checkpoint, read as any other tensor is, and decoded a chunk of rows
    at a time."""

    matrix: CheckpointMatrix | None = None
    """The matrix, never None: the field needs a default because the base's fields have some."""

    def __post_init__(self) -> None:
        matrix = self.quantised
        if self.shape != (matrix.outputs, matrix.inputs):
            raise ValueError(f"{self.name} has another shape than its matrix; use row_range")

    @staticmethod
    def of(matrix: CheckpointMatrix, name: str) -> CheckpointTensor:
        """`name`: as the checkpoint would have it unquantised."""
        shape = (matrix.outputs, matrix.inputs)
        return CheckpointTensor(
            name, shape, matrix.levels_are, np.empty(0, dtype=np.uint8), matrix=matrix
        )

    @property
    def quantised(self) -> CheckpointMatrix:
        if self.matrix is None:
            raise TypeError(f"{self.name} was made without its matrix")
        return self.matrix

    def row_range(self, rows: range) -> CheckpointTensor:
        if self.rearrange is not None:
            raise ValueError(f"the rows of {self.name} are rearranged; cut them before")
        return CheckpointTensor.of(self.quantised.row_range(rows), self.name)

    def _decode(self, flat: Tensor, place: Place) -> None:
        rows, columns = (range(size) for size in self.shape)
        self._decode_runs(flat.view(self.shape), np.arange(len(rows)), columns, place)

    def _decode_part(self, out: Tensor, rows: range, columns: range, place: Place) -> None:
        self._decode_runs(out, self.sources()[rows.start : rows.stop], columns, place)

    def _decode_runs(self, out: Tensor, sources: np.ndarray, columns: range, place: Place) -> None:
        """Decodes rows of the file, neighbours together."""
        begins = np.flatnonzero(np.diff(sources, prepend=sources[:1] - 2) != 1)
        for begin, end in zip(begins, [*begins[1:], len(sources)], strict=True):
            first = int(sources[begin])
            for rows in chunks(range(first, first + int(end - begin)), len(columns)):
                at = int(begin) + rows.start - first
                values = self.quantised.values(rows, columns)
                place(out[at : at + len(rows)], values.contiguous())


def chunks(rows: range, columns: int) -> Iterator[range]:
    """Splits rows into chunks whose elements take little memory."""
    step = max(1, CHUNK_ELEMENTS // max(1, columns))
    for start in range(rows.start, rows.stop, step):
        yield range(start, min(start + step, rows.stop))
