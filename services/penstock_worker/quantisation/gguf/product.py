"""Products with, and look-ups in, GGUF weights that stay quantised on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear as library_linear

from penstock_kernels.triton.linear.gguf_linear import gguf_linear
from penstock_kernels.triton.linear.gguf_rows import gguf_rows
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights

UNPACKED_ROWS = 512
"""From this many rows on, weights are unpacked before the product: more than a decode of 256
sequences has, which would otherwise unpack the whole model in every step. Estimated for 8 billion
weights on an H100, and not measured yet: unpacking writes and reads 33 GB in 10 ms, and saves as
much in products of 300 to 560 rows, if the kernel for packed weights reaches 300 to 400 TFLOP/s and
the library's 700."""


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
