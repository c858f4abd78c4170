"""A matrix in memory: of plain numbers, or as a file has it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from penstock_worker.quantisation.interface import KeptMatrix


@dataclass(frozen=True)
class Stacked:
    """Pieces of different types, one below the other. Plain ones have the type that is computed in,
    but for quantised ones that had to be unpacked: those are float32."""

    pieces: tuple[Tensor | KeptMatrix, ...]


Matrix = Tensor | KeptMatrix | Stacked
"""[outputs, inputs]. A plain tensor has the type that is computed in."""


def plain(matrix: Matrix) -> Tensor:
    """For those who compute with plain tensors alone. Raises TypeError for any other."""
    if isinstance(matrix, Tensor):
        return matrix
    raise TypeError(f"a {type(matrix).__name__} is no plain tensor; was it meant to be unpacked?")


def rows_of(piece: Tensor | KeptMatrix) -> int:
    return piece.shape[0] if isinstance(piece, Tensor) else piece.outputs
