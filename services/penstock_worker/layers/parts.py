"""What layers are built from: weights, operations, and this rank's shard."""

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
    """Everything that a layer needs for loading and computing."""

    config: ModelConfig
    """Of the whole model."""
    weights: Weights
    """Hands out the model's tensors, cut to this rank's shard."""
    ops: Ops
    """The kernels."""
    shard: Shard
    """What this rank holds of the model."""
    ranks: Ranks = ALONE
    """Communication with the other ranks."""

    def product(self, names: Sequence[tuple[str, int]], inputs: int, *, bias: bool) -> Product:
        """Returns a column-parallel projection, computed as one matrix.

        `names` are (name, outputs) of projections that share their input. Of outputs that are
        sharded, only this rank's are computed.
        """
        shapes = [(f"{name}.weight", (out, inputs)) for name, out in names]
        added = [(f"{name}.bias", (out,)) for name, out in names]
        return self.ops.product(
            self.weights.take_matrix(shapes), self.weights.take_stacked(added) if bias else None
        )

    def summed(self, name: str, outputs: int, inputs: int, *, bias: bool) -> Product:
        """Returns a row-parallel projection: inputs are sharded, and the ranks' products are summed
        by an all-reduce. The bias is added by one of the ranks."""
        place = self.ranks.place
        mine = self.product([(name, outputs)], inputs, bias=bias and place.tensor_rank == 0)
        return mine if place.tensor == 1 else Summed(mine, self.ranks)

    def norm(self, name: str, size: int) -> RMSNorm:
        weight = self.weights.take(f"{name}.weight", (size,))
        return RMSNorm(self.ops, weight, self.config.rms_norm_eps)


class Summed:
    """A row-parallel product: each tensor-parallel rank has a part of the inputs, and the results
    are summed."""

    def __init__(self, product: Product, ranks: Ranks) -> None:
        self.product = product
        self._ranks = ranks

    def __call__(self, x: Tensor) -> Tensor:
        return self._ranks.sum(self.product(x))


class RMSNorm:
    """Maps [rows, size] or [rows, heads, size] to the same shape."""

    def __init__(self, ops: Ops, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self._ops = ops

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self.weight, self.eps)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """Returns the norm of residual + x. Modifies `residual`, which becomes the sum."""
        return self._ops.add_rms_norm(x, residual, self.weight, self.eps)
