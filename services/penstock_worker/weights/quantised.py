"""What a model gets that computes with a file's quantised matrices as they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from penstock import logs
from penstock_kernels.triton.grouped_weights import GroupedWeights
from penstock_worker.weights.grouped import LAYOUTS, fits, grouped
from penstock_worker.weights.matrix import Matrix, Stacked
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

log = logs.get(__name__)

_Part = tuple[StoredTensor, tuple[range, ...]]


class QuantisedWeights(Weights):
    """dtype: of activations. Nothing is rounded to it: matrices stay in their file's type, but for
    float16, which becomes float32; vectors (norms, biases) are float32."""

    def take_stacked(
        self, parts: Sequence[tuple[str, Sequence[int]]], dtype: torch.dtype | None = None
    ) -> Tensor:
        if dtype is None and len(parts[0][1]) == 1:
            dtype = torch.float32
        return super().take_stacked(parts, dtype)

    def take_matrix(self, parts: Sequence[tuple[str, Sequence[int]]]) -> Matrix:
        """Tensors of one type become one GroupedWeights; a product may have pieces of several."""
        found: list[_Part] = [
            (self.stored(name, (shape[0], shape[1])), self._part(name, shape))
            for name, shape in parts
        ]
        pieces = [self._piece(kind, list(same)) for kind, same in groupby(found, key=_kind)]
        first = pieces[0]
        if len(pieces) == 1 and isinstance(first, GroupedWeights):
            return first
        return Stacked(tuple(pieces))

    def _piece(self, kind: str, parts: list[_Part]) -> Tensor | GroupedWeights:
        if kind in LAYOUTS:
            return grouped(parts, self.device, self._place)
        rows, columns = sum(len(part[0]) for _, part in parts), len(parts[0][1][1])
        dtype = torch.bfloat16 if kind == "BF16" else torch.float32
        out = torch.empty(rows, columns, dtype=dtype, device=self.device)
        start = 0
        for stored, part in parts:
            end = start + len(part[0])
            stored.read_part_into(out[start:end], part, self._place)
            start = end
        return out


def _kind(part: _Part) -> str:
    """What a piece is kept as. A rank's columns may be cut inside a group."""
    stored, (_, columns) = part
    if stored.format not in LAYOUTS or fits(stored, columns):
        return stored.format
    log.warning(
        "a matrix is unpacked: its columns are cut inside a group",
        tensor=stored.name,
        type=stored.format,
        columns=f"{columns.start} to {columns.stop}",
    )
    return "F32"
