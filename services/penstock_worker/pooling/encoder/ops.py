"""The operations that encoders are written in, whoever's kernels compute them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from penstock_worker.quantisation.interface import Product


class InputAttention(Protocol):
    """Attention of one step's inputs, each over itself. Called by each layer in turn."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query, key, value: [rows, heads, head_dim], views of one tensor -> the same, contiguous.
        An input's rows have the same bits whatever else the step holds."""


@dataclass(frozen=True)
class EncoderStep:
    """tokens, positions, types: [rows] int64, the inputs one after the other, then padding, if the
    kernels want any."""

    tokens: Tensor
    positions: Tensor
    types: Tensor
    attention: InputAttention


class EncoderOps(Protocol):
    """One set of kernels.  Tensors are its device's; numbers are those of
    `penstock_kernels.reference.encoder`, up to rounding, and an input's never depend on the others
    (but see TritonOps for products)."""

    def product(self, weight: Tensor, bias: Tensor) -> Product:
        """weight: [outputs, inputs].  bias: [outputs]."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """x: [rows, size]; over the last dimension."""

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        """layer_norm of x + residual, rounded to its dtype."""

    def activate(self, x: Tensor, kind: str) -> Tensor:
        """gelu, gelu_tanh or relu."""

    def lay_out(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        types: np.ndarray,
        lengths: Sequence[int],
        bias: Tensor | None,
    ) -> EncoderStep:
        """One step. tokens, positions, types: [tokens] int64 of the host.  lengths: of the inputs.
        bias: [heads, 2 * positions - 1]; what a query's score gets for a key `d` tokens further on
        is in column d + positions - 1."""
