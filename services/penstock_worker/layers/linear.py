"""Matrices and norms with their weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from penstock_kernels import reference as ops
from penstock_worker.weights import Weights


class Linear:
    """x @ weight.T + bias. x: [rows, inputs] -> [rows, outputs]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)

    @staticmethod
    def load(
        weights: Weights, parts: Sequence[tuple[str, int]], inputs: int, *, bias: bool
    ) -> Linear:
        """parts: (name, outputs) of projections of one input, computed as one matrix."""
        matrix = weights.take_stacked([(f"{name}.weight", (out, inputs)) for name, out in parts])
        if not bias:
            return Linear(matrix)
        return Linear(
            matrix, weights.take_stacked([(f"{name}.bias", (out,)) for name, out in parts])
        )


class RMSNorm:
    """x: [rows, size] or [rows, heads, size] -> the same."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    @staticmethod
    def load(weights: Weights, name: str, size: int, eps: float) -> RMSNorm:
        return RMSNorm(weights.take(f"{name}.weight", (size,)), eps)
