"""Normalisations of layers, by what the model's configuration says."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from penstock_worker.layers.ops import Ops


class Norm(Protocol):
    """Maps [rows, size] or [rows, heads, size] to the same shape."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """Returns the norm of residual + x. Modifies `residual`, which becomes the sum."""


class RMSNorm:
    """Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

    def __init__(self, ops: Ops, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self._ops = ops

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self.weight, self.eps)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._ops.add_rms_norm(x, residual, self.weight, self.eps)


class LayerNorm:
    """Layer normalisation (Ba et al., 2016)."""

    def __init__(self, ops: Ops, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = eps
        self._ops = ops

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.layer_norm(x, self.weight, self.bias, self.eps)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(residual.add_(x))


class NoNorm:
    """Stands where a layer has no norm."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual.add_(x)


NO_NORM: Norm = NoNorm()
