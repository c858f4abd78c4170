"""What towers and projectors are built of: products, norms and activations of rows.

A picture is encoded by itself, so the shapes of all products depend on the picture alone, and so do
its bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from penstock.model.layer_spec import NormSpec
from penstock_kernels import reference
from penstock_kernels.reference import encoder as kernels
from penstock_worker.weights.weights import Weights

Shape = tuple[str, int]
"""A module's name and its outputs."""


class TowerProduct:
    """x @ weight.T + bias, [rows, inputs] to [rows, outputs]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._outputs = weight.shape[0]
        self._weight = kernels.lane_padded(weight)
        self._bias = weight.new_zeros(len(self._weight))
        if bias is not None:
            self._bias[: self._outputs] = bias

    @property
    def size(self) -> int:
        """Multiplications for each row."""
        return self._weight.numel()

    def given(self, x: Tensor) -> Tensor:
        """Returns `x` where the weight is, and in its dtype."""
        return x.to(self._weight.device, self._weight.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        out = functional.linear(x, self._weight, self._bias)
        return out if out.shape[1] == self._outputs else out[:, : self._outputs].contiguous()

    @staticmethod
    def load(
        weights: Weights,
        parts: Sequence[Shape],
        inputs: int,
        *,
        bias: bool = True,
        order: Tensor | None = None,
    ) -> TowerProduct:
        """Several modules that share their input are one product. order: [outputs] int64, the
        file's row of each; None: as they come."""
        found = [weights.take_stacked([(f"{name}.weight", (out, inputs)) for name, out in parts])]
        if bias:
            found.append(weights.take_stacked([(f"{name}.bias", (out,)) for name, out in parts]))
        if order is not None:
            found = [each[order.to(each.device)] for each in found]
        return TowerProduct(found[0], found[1] if bias else None)


class TowerNorm:
    """A norm of each row."""

    def __init__(self, weights: Weights, name: str, size: int, spec: NormSpec) -> None:
        self._weight = weights.take(f"{name}.weight", (size,))
        self._bias = weights.take(f"{name}.bias", (size,)) if spec.bias else None
        self._spec = spec

    def __call__(self, x: Tensor) -> Tensor:
        if self._spec.kind == "rms":
            return reference.rms_norm(x, self._weight, self._spec.eps)
        return kernels.layer_norm(x, self._weight, self._bias, self._spec.eps)
