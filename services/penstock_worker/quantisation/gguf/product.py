"""Products with, and look-ups in, GGUF weights that stay quantised on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear as library_linear

from penstock_kernels.triton.linear.gguf_linear import gguf_linear
from penstock_kernels.triton.linear.gguf_rows import gguf_rows
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights

UNPACKED_ROWS = 256
"""From this many rows on, weights are unpacked before the product. The kernel for packed weights
decodes each weight once per 64 rows. Not measured yet."""


@dataclass(frozen=True)
class GGUFProduct:
    """A product whose weights are decoded without rounding, unless there are many rows."""

    weights: GGUFWeights
    bias: Tensor | None
    dtype: torch.dtype | None
    """Dtype of the result; None for the input's."""
    batch_invariant: bool
    many_rows: int | None
    """From this many rows on, weights are unpacked and rounded to the input's dtype; None for
    never."""

    def __call__(self, x: Tensor) -> Tensor:
        if self.many_rows is not None and x.shape[0] >= self.many_rows:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return library_linear(x, gguf_rows(self.weights, None, x.dtype), bias)
        return gguf_linear(
            x, self.weights, self.bias, dtype=self.dtype, batch_invariant=self.batch_invariant
        )


@dataclass(frozen=True)
class GGUFTable:
    """Rows of a matrix, each value of which is rounded once."""

    weights: GGUFWeights
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        return self.weights.outputs

    def __call__(self, ids: Tensor) -> Tensor:
        return gguf_rows(self.weights, ids, self.dtype)
