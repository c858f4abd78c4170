"""Products with, and rows of, a GGUF file's own numbers on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear as library_linear

from penstock_kernels.triton.linear.gguf_linear import gguf_linear
from penstock_kernels.triton.linear.gguf_rows import gguf_rows
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights

UNPACKED_ROWS = 256
"""From here on weights are unpacked first: their kernel decodes one once for each 64 rows.  Still
to be measured."""


@dataclass(frozen=True)
class GGUFProduct:
    """No weight is rounded, unless there are many rows."""

    weights: GGUFWeights
    bias: Tensor | None
    dtype: torch.dtype | None
    """Of the result; None: the input's."""
    batch_invariant: bool
    many_rows: int | None
    """From so many rows on weights are unpacked, and rounded to the input's dtype; None: never."""

    def __call__(self, x: Tensor) -> Tensor:
        if self.many_rows is not None and x.shape[0] >= self.many_rows:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return library_linear(x, gguf_rows(self.weights, None, x.dtype), bias)
        return gguf_linear(
            x, self.weights, self.bias, dtype=self.dtype, batch_invariant=self.batch_invariant
        )


@dataclass(frozen=True)
class GGUFTable:
    """Rows of a matrix, each number rounded once."""

    weights: GGUFWeights
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        return self.weights.outputs

    def __call__(self, ids: Tensor) -> Tensor:
        return gguf_rows(self.weights, ids, self.dtype)
