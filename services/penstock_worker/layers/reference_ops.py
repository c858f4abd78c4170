"""The reference kernels as Ops."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from penstock_kernels import reference
from penstock_worker.layers.ops import Ops, Product


@dataclass(frozen=True)
class ReferenceProduct:
    """x @ weight.T + bias."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return reference.linear(x, self.weight, self.bias)


class ReferenceOps:
    """Plain torch, on the CPU."""

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return ReferenceProduct(weight, bias)

    def head(self, weight: Tensor) -> Product:
        return ReferenceProduct(weight, None)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return reference.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return reference.rms_norm(residual.add_(x), weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return reference.silu_mul(gate_up)


REFERENCE: Ops = ReferenceOps()
