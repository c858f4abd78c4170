"""Weights whose quantised matrices stay as their file has them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from penstock import logs
from penstock_worker.quantisation.interface import KeptMatrix
from penstock_worker.weights.matrix import Matrix, Stacked
from penstock_worker.weights.repacking import LAYOUTS, fits, repacked
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

log = logs.get(__name__)

_Part = tuple[StoredTensor, tuple[range, ...]]

_FLOATS = "floats"
"""In the dtype that is computed in."""
_UNPACKED = "unpacked"
"""In float32, which holds every value of a quantised type."""


class QuantisedWeights(Weights):
    """dtype: of activations, and of matrices that the file has in a floating-point type: products
    want both of one type.  Quantised matrices stay as the file has them; vectors (norms, biases)
    are float32."""

    def take_stacked(
        self, parts: Sequence[tuple[str, Sequence[int]]], dtype: torch.dtype | None = None
    ) -> Tensor:
        if dtype is None and len(parts[0][1]) == 1:
            dtype = torch.float32
        return super().take_stacked(parts, dtype)

    def take_matrix(self, parts: Sequence[tuple[str, Sequence[int]]]) -> Matrix:
        """Tensors of one quantised type become one KeptMatrix, those of floating-point types
        one tensor; a product may have pieces of several."""
        found: list[_Part] = [
            (self.stored(name, (shape[0], shape[1])), self._part(name, shape))
            for name, shape in parts
        ]
        groups = [(kind, list(same)) for kind, same in groupby(found, key=_kind)]
        pieces = [self._piece(kind, same) for kind, same in groups]
        # Of one type, and no wider one than all others compute in.
        if len(pieces) == 1 and groups[0][0] != _UNPACKED:
            return pieces[0]
        return Stacked(tuple(pieces))

    def _piece(self, kind: str, parts: list[_Part]) -> Tensor | KeptMatrix:
        if kind in LAYOUTS:
            return repacked(parts, self.device, self._place)
        rows, columns = sum(len(part[0]) for _, part in parts), len(parts[0][1][1])
        dtype = torch.float32 if kind == _UNPACKED else self.dtype
        out = torch.empty(rows, columns, dtype=dtype, device=self.device)
        start = 0
        for stored, part in parts:
            end = start + len(part[0])
            stored.read_part_into(out[start:end], part, self._place)
            start = end
        return out


def _kind(part: _Part) -> str:
    """What a piece is kept as: a key of LAYOUTS, _FLOATS, or _UNPACKED, as a rank's columns may be
    cut inside a group."""
    stored, (_, columns) = part
    if stored.format not in LAYOUTS:
        return _FLOATS
    if fits(stored, columns):
        return stored.format
    log.warning(
        "a matrix is unpacked: its columns are cut inside a group",
        tensor=stored.name,
        type=stored.format,
        columns=f"{columns.start} to {columns.stop}",
    )
    return _UNPACKED
