"""A matrix in memory: unquantised, or quantised as in its file."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from penstock_worker.quantisation.interface import KeptMatrix


@dataclass(frozen=True)
class Stacked:
    """Pieces of different types, stacked by rows. Unquantised pieces have the dtype of the
    computation, except those that were quantised and had to be unpacked, which are float32."""

    pieces: tuple[Tensor | KeptMatrix, ...]


Matrix = Tensor | KeptMatrix | Stacked
"""[outputs, inputs]. A plain tensor has the dtype of the computation."""


def plain(matrix: Matrix) -> Tensor:
    """Returns the matrix as a tensor, for kernels that know no other kind. Raises TypeError if it
    isn't one."""
    if isinstance(matrix, Tensor):
        return matrix
    raise TypeError(f"a {type(matrix).__name__} is no plain tensor; was it meant to be unpacked?")


def rows_of(piece: Tensor | KeptMatrix) -> int:
    return piece.shape[0] if isinstance(piece, Tensor) else piece.outputs
