"""What layers are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from penstock.model_config import ModelConfig
from penstock_worker.layers.ops import Ops
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.parallel.shard import Shard
from penstock_worker.quantisation.interface import Product
from penstock_worker.weights.weights import Weights


@dataclass(frozen=True)
class Parts:
    """What a layer takes its tensors from, and what computes with them."""

    config: ModelConfig
    """Of the model."""
    weights: Weights
    """Hands out the model's tensors, or what this rank has of them."""
    ops: Ops
    """What computes."""
    shard: Shard
    """What this rank has."""
    ranks: Ranks = ALONE
    """The way to the other ranks."""

    def product(self, names: Sequence[tuple[str, int]], inputs: int, *, bias: bool) -> Product:
        """names: (name, outputs) of projections of one input, computed as one matrix. Of outputs
        that are dealt out, this rank's."""
        shapes = [(f"{name}.weight", (out, inputs)) for name, out in names]
        added = [(f"{name}.bias", (out,)) for name, out in names]
        return self.ops.product(
            self.weights.take_matrix(shapes), self.weights.take_stacked(added) if bias else None
        )

    def summed(self, name: str, outputs: int, inputs: int, *, bias: bool) -> Product:
        """A projection of inputs that are dealt out: each rank's part, and their sum. The bias is
        added by one of them."""
        place = self.ranks.place
        mine = self.product([(name, outputs)], inputs, bias=bias and place.tensor_rank == 0)
        return mine if place.tensor == 1 else Summed(mine, self.ranks)

    def norm(self, name: str, size: int) -> RMSNorm:
        weight = self.weights.take(f"{name}.weight", (size,))
        return RMSNorm(self.ops, weight, self.config.rms_norm_eps)


class Summed:
    """A product whose inputs are spread over tensor ranks."""

    def __init__(self, product: Product, ranks: Ranks) -> None:
        self.product = product
        self._ranks = ranks

    def __call__(self, x: Tensor) -> Tensor:
        return self._ranks.sum(self.product(x))


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
