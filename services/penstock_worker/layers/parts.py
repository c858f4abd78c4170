"""What layers are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from penstock.model_config import ModelConfig
from penstock_worker.layers.ops import Ops, Product
from penstock_worker.weights import Weights


@dataclass(frozen=True)
class Parts:
    """config: of the model.  weights: hands out its tensors.  ops: what computes with them."""

    config: ModelConfig
    weights: Weights
    ops: Ops

    def product(self, names: Sequence[tuple[str, int]], inputs: int, *, bias: bool) -> Product:
        """names: (name, outputs) of projections of one input, computed as one matrix."""
        shapes = [(f"{name}.weight", (out, inputs)) for name, out in names]
        added = [(f"{name}.bias", (out,)) for name, out in names]
        return self.ops.product(
            self.weights.take_stacked(shapes), self.weights.take_stacked(added) if bias else None
        )

    def norm(self, name: str, size: int) -> RMSNorm:
        weight = self.weights.take(f"{name}.weight", (size,))
        return RMSNorm(self.ops, weight, self.config.rms_norm_eps)


class RMSNorm:
    """x: [rows, size] or [rows, heads, size] -> the same."""

    def __init__(self, ops: Ops, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self._ops = ops

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self.weight, self.eps)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """Of residual + x. Mutates residual: it becomes the sum."""
        return self._ops.add_rms_norm(x, residual, self.weight, self.eps)
