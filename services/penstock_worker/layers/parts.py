"""What layers are built from: the operations of a set of kernels, norms, weights, and this rank's
shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec
from penstock.model.recurrent_spec import RecurrentSpec
from penstock_worker.adapters.interface import ProductAdapters
from penstock_worker.layers.norm_kinds import norm_spec
from penstock_worker.layers.step import Step
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.parallel.shard import Shard, deal_units, head_ranges
from penstock_worker.quantisation.interface import Product, Table
from penstock_worker.weights.weights import Matrix, Weights

if TYPE_CHECKING:
    from torch import Tensor


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

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        """Adds x to residual in place, rounded to its dtype, and returns the sum's layer_norm."""

    def activate(self, x: Tensor, kind: str, *, gated: bool, limit: float | None = None) -> Tensor:
        """Maps [rows, 2 * size], the gate first, to activation(gate) * up, [rows, size]; or not
        gated, [rows, size] to activation(x). `kind` is a FeedForwardSpec's activation, `limit`,
        which only what is gated may have, its limit."""

    def sparse_gate(self, gate_up: Tensor, share: float) -> Tensor:
        """Sets the `share` of the smallest numbers of a gate to 0, as far as these are
        normally distributed, and takes as much from the others. `gate_up`: [rows, 2 * size],
        the gate first."""

    def as_large(self, x: Tensor, as_what: Tensor, least: float) -> Tensor:
        """Scales each row of x, [rows, size], to the root mean square of a row of the other; of x,
        a mean square below `least` counts as that."""


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
        return self._ops.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


class NoNorm:
    """Stands where a layer has no norm."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual.add_(x)


NO_NORM: Norm = NoNorm()


class LayerExperts(Protocol):
    """A layer's router and the experts that it chooses from."""

    def __call__(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Tensor:
        """Maps [rows, hidden], or rows as wide as its experts read, to each row's weighted sum over
        its experts, added in the order of their numbers: rows as wide, float32. Of tensor-parallel
        ranks, each has a part of every expert's inner dimension, and returns a part of the sum.
        `routed`: the router's input, where it is another one. `chosen`: each row's experts, [rows,
        active] int64; None: the router chooses."""

    def begin(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Callable[[], Tensor]:
        """Begins what `__call__` does, and returns what gives its result, which is to be called
        once. What is computed before may go on beside it."""


class ExpertsAtOnce:
    """LayerExperts that have computed when `begin` returns."""

    def __call__(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Tensor:
        """As LayerExperts has it."""
        raise NotImplementedError

    def begin(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Callable[[], Tensor]:
        """As LayerExperts has it."""
        found = self(hidden, routed, chosen)
        return lambda: found


Beside = TypeVar("Beside")


def meanwhile(finish: Callable[[], Tensor], work: Callable[[], Beside]) -> tuple[Tensor, Beside]:
    """Does work beside experts that have begun. Returns what `finish` and `work` return."""
    try:
        found = work()
    except BaseException:
        finish()  # Until then, what experts read and write is still theirs.
        raise
    return finish(), found


class LayerAttention(Protocol):
    """A layer's attention, or what stands in its place."""

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        """Maps [rows, hidden] to [rows, hidden], and writes to the KV cache."""


class Recurrence(Protocol):
    """A recurrent layer's half that stands in the attention's place."""

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        """Maps [rows, hidden] to [rows, hidden], and moves the sequences' states on."""


class DecoderOps(Ops, Protocol):
    """The operations that layers of decoders are computed with."""

    def experts(self, parts: Parts, feed_forward: FeedForwardSpec, prefix: str) -> LayerExperts:
        """Loads a layer's router and experts, whose tensors' names begin with `prefix`."""

    def recurrence(self, parts: Parts, layer: int, spec: RecurrentSpec) -> Recurrence:
        """Loads what stands in the attention's place in layer number `layer` of the model."""


@dataclass(frozen=True)
class Parts:
    """Everything that a layer needs for loading and computing."""

    config: ModelConfig
    """Config of the whole model."""
    weights: Weights
    """Hands out the model's tensors, cut to this rank's shard."""
    ops: DecoderOps
    """The kernels."""
    shard: Shard
    """What this rank holds of the model."""
    ranks: Ranks = ALONE
    """Communication with the other ranks."""
    adapters: ProductAdapters | None = None
    """Makes products to which adapters are added; None if there never are any."""

    def product(self, names: Sequence[tuple[str, int]], inputs: int, *, bias: bool) -> Product:
        """Returns a column-parallel projection, computed as one matrix.

        `names` are (name, outputs) of projections that share their input. Of outputs that are
        sharded, only this rank's are computed.
        """
        shapes = [(f"{name}.weight", (out, inputs)) for name, out in names]
        added = [(f"{name}.bias", (out,)) for name, out in names]
        product = self.ops.product(
            self.weights.take_matrix(shapes), self.weights.take_stacked(added) if bias else None
        )
        if self.adapters is None:
            return product
        own = [self.weights.ranges(name, shape) for name, shape in shapes]
        rows, columns = ([sum(map(len, each)) for each in axis] for axis in zip(*own, strict=True))
        sizes = [(name, size) for (name, _), size in zip(names, rows, strict=True)]
        return self.adapters.adapted(product, sizes, columns[0])

    def summed(self, name: str, outputs: int, inputs: int, *, bias: bool) -> Product:
        """Returns a row-parallel projection: inputs are sharded, and the ranks' products are summed
        by an all-reduce. The bias is added by one of the ranks."""
        mine = self.summand(name, outputs, inputs, bias=bias)
        return mine if self.ranks.place.tensor == 1 else Summed(mine, self.ranks)

    def summand(self, name: str, outputs: int, inputs: int, *, bias: bool) -> Product:
        """Returns a row-parallel projection, as `summed` does, without the sum over the ranks."""
        own = bias and self.ranks.place.tensor_rank == 0
        return self.product([(name, outputs)], inputs, bias=own)

    def norm(self, name: str, size: int) -> Norm:
        """Returns the norm of that name, of the model's kind."""
        spec, weight = norm_spec(self.config.norm, name), self.norm_weight(name, size)
        if spec.kind == "rms":
            return RMSNorm(self.ops, weight, spec.eps)
        bias = self.weights.take(f"{name}.bias", (size,)) if spec.bias else None
        return LayerNorm(self.ops, weight, bias, spec.eps)

    def norm_of_parts(self, name: str, size: int, which: int) -> Norm:
        """Returns the norm over all query heads (`which` is 0) or all key heads (1), of which this
        rank computes its own."""
        dim, tensor = self.config.head_dim, self.ranks.place.tensor
        heads = [each[which] for each in head_ranges(self.config, tensor)]
        return self._norm_of(
            name, size, [range(part.start * dim, part.stop * dim) for part in heads]
        )

    def norm_of_inner(self, name: str, size: int) -> Norm:
        """Returns the norm over a feed-forward's inner values, of which this rank computes its
        own."""
        return self._norm_of(name, size, deal_units(size, self.ranks.place.tensor))

    def _norm_of(self, name: str, size: int, columns: Sequence[range]) -> Norm:
        """`columns`: those of each tensor-parallel rank."""
        norm = self.norm(name, size)
        return norm if len(columns) == 1 else NormOfParts(norm, self.ranks, columns)

    def weightless_norm(self, size: int) -> Norm:
        """Returns the division by the root mean square of `size` numbers."""
        ones = torch.ones(size, dtype=self.weights.dtype, device=self.weights.device)
        return RMSNorm(self.ops, ones, self.config.norm.eps)

    def norm_weight(self, name: str, size: int) -> Tensor:
        """Returns the factors of a norm, [size]. Where the model means 1 + weight, the sum is made
        in float32, as a narrower dtype would round it."""
        if not norm_spec(self.config.norm, name).plus_one:
            return self.weights.take(f"{name}.weight", (size,))
        return self.weights.take(f"{name}.weight", (size,), torch.float32) + 1.0


class NormOfParts:
    """A norm over columns that the tensor-parallel ranks share: they are gathered before it."""

    def __init__(self, norm: Norm, ranks: Ranks, columns: Sequence[range]) -> None:
        """`columns`: those of each tensor-parallel rank."""
        self._norm = norm
        self._ranks = ranks
        self._columns = columns

    def __call__(self, x: Tensor) -> Tensor:
        own = self._columns[self._ranks.place.tensor_rank]
        normed = self._norm(self._ranks.join_parts(x, self._columns))
        return normed[:, own.start : own.stop]

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(residual.add_(x))


class NormedInput:
    """A product whose input gets a norm."""

    def __init__(self, norm: Norm, product: Product) -> None:
        self.norm = norm
        self.product = product

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(self.norm(x))


class Summed:
    """A row-parallel product: each tensor-parallel rank has a part of the inputs, and the results
    are summed."""

    def __init__(self, product: Product, ranks: Ranks) -> None:
        self.product = product
        self._ranks = ranks

    def __call__(self, x: Tensor) -> Tensor:
        return self._ranks.sum(self.product(x))
