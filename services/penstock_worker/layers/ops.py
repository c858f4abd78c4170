"""The operations that model families are written in, whoever's kernels compute them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from penstock_worker.quantisation.interface import Product, Table
from penstock_worker.weights.matrix import Matrix


class Ops(Protocol):
    """One set of kernels.  Tensors are its device's; numbers are `penstock_kernels.reference`'s, up
    to rounding, and a row's never depend on the other rows."""

    def product(self, weight: Matrix, bias: Tensor | None = None) -> Product:
        """weight: [outputs, inputs].  bias: [outputs]."""

    def table(self, weight: Matrix) -> Table:
        """weight: [vocab, hidden]."""

    def head(self, weight: Matrix) -> Product:
        """The product that gives logits. weight: [vocab, hidden]; never quantised unless its file
        has it so, and where it is the embedding's own matrix already, not copied."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x: [rows, size] or [rows, heads, size]; over the last dimension."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual += x, rounded to its dtype; then rms_norm of it."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[rows, 2 * size], the gate first -> [rows, size]."""
