"""The operations that model families are written in, independent of the kernels that compute
them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from penstock_worker.quantisation.interface import Product, Table
from penstock_worker.weights.matrix import Matrix


class Ops(Protocol):
    """One set of kernels. Tensors are on its device. Results equal those of
    `penstock_kernels.reference` up to rounding, and a row's result never depends on the other
    rows."""

    def product(self, weight: Matrix, bias: Tensor | None = None) -> Product:
        """`weight` is [outputs, inputs], `bias` [outputs]."""

    def per_head(self, weights: Tensor) -> Product:
        """A product of its own for each head, which maps [rows, heads, inputs] to [rows, heads,
        outputs]. `weights` is [heads, outputs, inputs]."""

    def table(self, weight: Matrix) -> Table:
        """`weight` is [vocab, hidden]."""

    def head(self, weight: Matrix) -> Product:
        """Returns the product that computes logits. `weight` is [vocab, hidden]. It is never
        quantised on load, and where it is the embedding's matrix, it isn't copied."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalises over the last dimension. `x` is [rows, size] or [rows, heads, size]."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Adds x to residual in place, rounded to its dtype, and returns the sum's rms_norm."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Shifts to mean 0 and normalises over the last dimension. `x` is [rows, size]."""

    def activate(self, x: Tensor, kind: str, *, gated: bool) -> Tensor:
        """Maps [rows, 2 * size], the gate first, to activation(gate) * up, [rows, size]; or not
        gated, [rows, size] to activation(x). `kind` is a FeedForwardSpec's activation."""

    def sparse_gate(self, gate_up: Tensor, share: float) -> Tensor:
        """Sets the `share` of the smallest numbers of a gate to 0, as far as these are
        normally distributed, and takes as much from the others. `gate_up`: [rows, 2 * size],
        the gate first."""

    def as_large(self, x: Tensor, as_what: Tensor, least: float) -> Tensor:
        """Scales each row of x, [rows, size], to the root mean square of a row of the other; of x,
        a mean square below `least` counts as that."""
