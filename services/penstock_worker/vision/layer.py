"""A layer of a tower: attention within each part of an item, then feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.layer_spec import NormSpec
from penstock_kernels import reference
from penstock_kernels.reference import encoder as kernels
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.rows import ONE_THREAD, RowThreads
from penstock_worker.weights.weights import Weights

# What towers and projectors are built of: products, norms and activations of rows.
#
# A picture is encoded by itself, so the shapes of all products depend on the picture alone, and so
# do its bits.

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


LAYER_OF = "layers."
QUERY_NORM = NormSpec(eps=1e-6)


class LayerSizes(Protocol):
    """What towers' specs have in common."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def norm(self) -> NormSpec: ...
    @property
    def activation(self) -> str: ...


@dataclass(frozen=True)
class LayerForm:
    """What layers of towers differ in beyond sizes: see TowerSpec."""

    gated: bool = False
    qkv_bias: bool = True
    bias: bool = True
    query_norms: bool = False
    head_norms: bool = False
    layer_scale: bool = False
    pairs_adjacent: bool = False
    """Whether the file's rows of queries and keys have the numbers of a rotary pair next to each
    other."""


PLAIN = LayerForm()


class TowerLayer:
    """Maps [rows, hidden] to the same shape."""

    def __init__(
        self,
        spec: LayerSizes,
        weights: Weights,
        number: int,
        form: LayerForm = PLAIN,
        threads: RowThreads = ONE_THREAD,
    ) -> None:
        at, size, inner = f"{LAYER_OF}{number}", spec.hidden_size, spec.intermediate_size
        self._norms = [TowerNorm(weights, f"{at}.norm{which}", size, spec.norm) for which in (1, 2)]
        qkv = [(f"{at}.qkv", 3 * size)]
        if not weights.has(f"{at}.qkv.weight"):
            qkv = [(f"{at}.{part}_proj", size) for part in "qkv"]
        order = _halves_apart(size, spec.num_heads) if form.pairs_adjacent else None
        self._qkv = TowerProduct.load(weights, qkv, size, bias=form.qkv_bias, order=order)
        self._query_norms: list[TowerNorm] = []
        if form.query_norms:
            self._query_norms = [
                TowerNorm(weights, f"{at}.{which}_norm", size, QUERY_NORM) for which in "qk"
            ]
        self._head_norms: list[TowerNorm] = []
        if form.head_norms:
            self._head_norms = [
                TowerNorm(weights, f"{at}.{which}_norm", spec.head_dim, spec.norm) for which in "qk"
            ]
        out, bias = [(f"{at}.out_proj", size)], form.bias
        self._mixed = TowerProduct.load(weights, out, size, bias=bias)
        names = ("gate_proj", "up_proj") if form.gated else ("up_proj",)
        up = [(f"{at}.{name}", inner) for name in names]
        self._up = TowerProduct.load(weights, up, size, bias=bias)
        self._down = TowerProduct.load(weights, [(f"{at}.down_proj", size)], inner, bias=bias)
        self._scales: list[Tensor] = []
        if form.layer_scale:
            self._scales = [weights.take(f"{at}.scale{which}", (size,)) for which in (1, 2)]
        self._spec = spec
        self._gated = form.gated
        self._threads = threads

    @property
    def row_work(self) -> int:
        """Multiplications for each row, without those of attention."""
        return self._qkv.size + self._behind_work

    @property
    def _behind_work(self) -> int:
        return self._mixed.size + self._up.size + self._down.size

    def pieces(
        self, hidden: Tensor, lengths: list[int], angles: tuple[Tensor, Tensor] | None = None
    ) -> Pieces[Tensor]:
        """lengths: of the parts whose rows see one another; rows beyond are padding. angles:
        cosines and sines by which queries and keys rotate; None: they don't."""
        threads = self._threads
        inputs = (hidden, *(angles or ()))
        three = yield from threads.mapped(self._queries, *inputs, each=self._qkv.size)
        query, key, value = three.unbind(1)
        mixed = yield from threads.attended(query, key, value, lengths)
        rows = (hidden, mixed.flatten(1))
        return (yield from threads.mapped(self._behind, *rows, each=self._behind_work))

    def _queries(self, hidden: Tensor, *angles: Tensor) -> Tensor:
        """Queries, keys and values: [rows, 3, heads, head size]."""
        three = self._qkv(self._norms[0](hidden)).unflatten(1, (3, -1))
        if not (self._query_norms or self._head_norms or angles):
            return three.unflatten(2, (self._spec.num_heads, -1))
        query, key, value = three.unbind(1)
        if self._query_norms:
            of_query, of_key = self._query_norms
            query, key = of_query(query.contiguous()), of_key(key.contiguous())
        heads = [each.unflatten(1, (self._spec.num_heads, -1)) for each in (query, key, value)]
        if self._head_norms:
            heads[:2] = (norm(each) for norm, each in zip(self._head_norms, heads, strict=False))
        if angles:
            heads[:2] = (reference.apply_rope(each, *angles) for each in heads[:2])
        return torch.stack(heads, 1)

    def _behind(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Computes what comes after the attention, whose result is `mixed`, [rows, hidden]."""
        mixed = self._mixed(mixed)
        hidden = hidden + (mixed if not self._scales else self._scales[0] * mixed)
        inner = self._up(self._norms[1](hidden))
        if self._gated:
            inner = reference.gated_activation(inner, self._spec.activation)
        else:
            inner = reference.plain_activation(inner, self._spec.activation)
        added = self._down(inner)
        return hidden + (added if not self._scales else self._scales[1] * added)


def _halves_apart(size: int, heads: int) -> Tensor:
    """[3 * size] int64: of which row each row of queries, keys and values is made, so that those of
    a rotary pair, which are adjacent in queries and keys, come to lie half a head apart."""
    rows = torch.arange(size).unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten()
    return torch.cat((rows, size + rows, 2 * size + torch.arange(size)))
