"""Rows with lengths of their own: DoRA (Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation",
2024).

The matrix W + scale * B A gets other rows: each is multiplied by what makes its length the one that
the adapter says. Lengths without the adapter are read from the model's files, once, when it is
loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.adapters import UnfitAdapter
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

_BLOCK = 256
"""Rows that are read together. Blocks begin at multiples, so that ranks find the same lengths."""


@dataclass(frozen=True)
class RowLengths:
    """What an adapter says of a module's rows."""

    name: str
    """Our name of the module."""
    shape: tuple[int, int]
    """(outputs, inputs) of its matrix."""
    wanted: StoredTensor
    """[outputs, 1]."""
    weights: Weights
    """The model's own."""
    matrix: str
    """Our name of the module whose matrix it has: a tied head has the embedding's."""

    def gains(self, rows: range, down: Tensor, up: Tensor, scale: float) -> Tensor:
        """Returns what these rows of W + scale * up down are multiplied by, [rows] float32. `down`
        and `up` are the whole factors, float32. Raises UnfitAdapter for lengths that aren't
        finite."""
        outputs, inputs = self.shape
        stored = self.weights.source(f"{self.matrix}.weight", self.shape)
        wanted = torch.empty(outputs, 1)
        self.wanted.read_into(wanted)
        found = torch.empty(outputs)
        first = rows.start // _BLOCK * _BLOCK
        for start in range(first, rows.stop, _BLOCK):
            block = range(start, min(start + _BLOCK, outputs))
            matrix = torch.empty(len(block), inputs)
            stored.read_part_into(matrix, (block, range(inputs)), Tensor.copy_)
            changed = matrix.double()
            changed += scale * (up[block.start : block.stop].double() @ down.double())
            length = changed.square().sum(1).sqrt()
            part = slice(block.start, block.stop)
            found[part] = (wanted[part, 0].double() / length).float()
        own = found[rows.start : rows.stop]
        if not own.isfinite().all():
            raise UnfitAdapter(
                f"the adapter's tensor {self.wanted.name} gives row norms that are zero or not "
                "finite"
            )
        return own

    def kept_bias(self, rows: range, gains: Tensor) -> Tensor:
        """Returns what is added to products so that their bias is as it was, [rows] float32."""
        name = f"{self.name}.bias"
        if not self.weights.has(name):
            return torch.zeros(len(rows))
        bias = torch.empty(self.shape[0])
        self.weights.stored(name, (self.shape[0],)).read_into(bias)
        return bias[rows.start : rows.stop] * (1 - gains)
