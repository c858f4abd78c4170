"""The operations that encoders are written in, independent of the kernels that compute them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from penstock_worker.quantisation.interface import Product


class InputAttention(Protocol):
    """Attention within each input of a step. Called by each layer in turn."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Maps query, key and value, each [rows, heads, head_dim], the heads of a row contiguous,
        to a contiguous tensor of this shape. The rows of an input have the same bits whatever
        else is in the step."""


@dataclass(frozen=True)
class EncoderStep:
    """The inputs of a step on the device, one after another, then padding if the kernels need
    it."""

    tokens: Tensor
    """Token id of each row, [rows] int64."""
    positions: Tensor
    """Position of each row in its text, [rows] int64."""
    types: Tensor
    """Token type of each row, [rows] int64."""
    attention: InputAttention


class EncoderOps(Protocol):
    """One set of kernels. Tensors are on its device. Results equal those of
    `penstock_kernels.reference.encoder` up to rounding, and an input's result never depends on the
    others (for products see TritonOps)."""

    def product(self, weight: Tensor, bias: Tensor) -> Product:
        """`weight` is [outputs, inputs], `bias` [outputs]."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalises `x`, [rows, size], over the last dimension."""

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        """Returns layer_norm of x + residual, where the sum is rounded to its dtype."""

    def activate(self, x: Tensor, kind: str) -> Tensor:
        """`kind` is gelu, gelu_tanh or relu."""

    def lay_out(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        types: np.ndarray,
        lengths: Sequence[int],
        bias: Tensor | None,
    ) -> EncoderStep:
        """Returns one step.

        `tokens`, `positions`, `types`: [tokens] int64 on the host.
        `lengths`: tokens of each input.
        `bias`: [heads, 2 * positions - 1]; the bias on a score whose key is `d` tokens after the
        query is in column d + positions - 1.
        """
