"""A layer of a tower: attention within each part of an item, then feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.layer_spec import NormSpec
from penstock_kernels import reference
from penstock_kernels.reference import encoder as kernels
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.rows import ONE_THREAD, RowThreads, attention_work
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


@dataclass(frozen=True)
class ClipBounds:
    """Bounds between which a product's inputs, and its outputs, are kept."""

    low: float
    high: float
    low_out: float
    high_out: float

    @staticmethod
    def load(weights: Weights, module: str) -> ClipBounds:
        names = ("input_min", "input_max", "output_min", "output_max")
        return ClipBounds(*(weights.number(f"{module}.{name}") for name in names))


class ClippedProducts:
    """Does what TowerProduct does, for modules without biases that have bounds: each has its
    own."""

    def __init__(self, parts: Sequence[tuple[TowerProduct, ClipBounds]]) -> None:
        self._parts = parts

    @property
    def size(self) -> int:
        """Multiplications for each row."""
        return sum(product.size for product, _ in self._parts)

    def __call__(self, x: Tensor) -> Tensor:
        made = [
            product(x.clamp(of.low, of.high)).clamp(of.low_out, of.high_out)
            for product, of in self._parts
        ]
        return made[0] if len(made) == 1 else torch.cat(made, 1)

    @staticmethod
    def load(
        weights: Weights, parts: Sequence[Shape], inputs: int, *, order: Tensor | None = None
    ) -> ClippedProducts:
        """order: as of TowerProduct.load."""
        made, start = [], 0
        for name, out in parts:
            rows = None if order is None else order[start : start + out] - start
            product = TowerProduct.load(weights, [(name, out)], inputs, bias=False, order=rows)
            made.append((product, ClipBounds.load(weights, name)))
            start += out
        return ClippedProducts(made)


def load_products(
    weights: Weights,
    parts: Sequence[Shape],
    inputs: int,
    *,
    clipped: bool,
    bias: bool = False,
    order: Tensor | None = None,
) -> TowerProduct | ClippedProducts:
    """Reads modules that share their input. clipped: whether the file has bounds of them, which
    then have no biases.  order: as of TowerProduct.load."""
    if clipped:
        return ClippedProducts.load(weights, parts, inputs, order=order)
    return TowerProduct.load(weights, parts, inputs, bias=bias, order=order)


class TowerNorm:
    """A norm of each row."""

    def __init__(
        self,
        weights: Weights,
        name: str,
        size: int,
        spec: NormSpec,
        order: Tensor | None = None,
    ) -> None:
        """order: [size] int64, which of the file's factors each number has; None: its own."""
        self._weight = weights.take(f"{name}.weight", (size,))
        if order is not None:
            self._weight = self._weight[order.to(self._weight.device)]
        self._bias = weights.take(f"{name}.bias", (size,)) if spec.bias else None
        if order is not None and self._bias is not None:
            self._bias = self._bias[order.to(self._bias.device)]
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
    value_norm: bool = False
    output_norms: bool = False
    clipped: bool = False
    scale: float | None = None
    """Factor of query times key; None: head_dim ** -0.5."""
    pairs_adjacent: bool = False
    """Whether the file's rows of queries and keys have the numbers of a rotary pair next to each
    other."""
    pairs_by_halves: bool = False
    """Whether they have them in one half of a head (see RotaryPositions.by_halves)."""
    pairs_by_axes: bool = False
    """Whether they have them in one third of what turns (see RotaryPositions.by_axes)."""
    kv_heads: int = 0
    """Heads of keys and values, each of which several of queries share; 0: all have their own."""
    out_bias: bool = True
    """Whether the output projection of attention has a bias, as those of the feed-forward have."""


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
        within: str = "",
    ) -> None:
        """within: what its tensors' names begin with before those of a tower's layers would."""
        at, size, inner = f"{within}{LAYER_OF}{number}", spec.hidden_size, spec.intermediate_size
        # In the order in which they are applied.
        count = 4 if form.output_norms else 2
        norms = [TowerNorm(weights, f"{at}.norm{1 + n}", size, spec.norm) for n in range(count)]
        self._norms = norms[:: count // 2]
        self._output_norms = norms[1::2] if form.output_norms else []
        kept = (form.kv_heads or spec.num_heads) * spec.head_dim
        qkv = [(f"{at}.qkv", size + 2 * kept)]
        if not weights.has(f"{at}.qkv.weight"):
            each = zip("qkv", (size, kept, kept), strict=True)
            qkv = [(f"{at}.{part}_proj", rows) for part, rows in each]
        load = partial(load_products, weights, clipped=form.clipped)
        order = _qkv_order(spec, form)
        self._qkv = load(qkv, size, bias=form.qkv_bias, order=order)
        self._query_norms: list[TowerNorm] = []
        if form.query_norms:
            self._query_norms = [
                TowerNorm(weights, f"{at}.{which}_norm", size, QUERY_NORM) for which in "qk"
            ]
        self._head_norms: list[TowerNorm] = []
        if form.head_norms:
            own = _by_pairs(spec.head_dim, 1) if form.pairs_by_halves else None
            self._head_norms = [
                TowerNorm(weights, f"{at}.{which}_norm", spec.head_dim, spec.norm, own)
                for which in "qk"
            ]
        out, bias = [(f"{at}.out_proj", size)], form.bias
        self._mixed = load(out, size, bias=bias and form.out_bias)
        names = ("gate_proj", "up_proj") if form.gated else ("up_proj",)
        up = [(f"{at}.{name}", inner) for name in names]
        self._up = load(up, size, bias=bias)
        self._down = load([(f"{at}.down_proj", size)], inner, bias=bias)
        self._scales: list[Tensor] = []
        if form.layer_scale:
            self._scales = [weights.take(f"{at}.scale{which}", (size,)) for which in (1, 2)]
        self._value_weight = torch.ones(spec.head_dim, dtype=weights.dtype, device=weights.device)
        self._spec = spec
        self._form = form
        self._threads = threads

    @property
    def row_work(self) -> int:
        """Multiplications for each row, without those of attention."""
        return self._qkv.size + self._work_after

    @property
    def _work_after(self) -> int:
        return self._mixed.size + self._up.size + self._down.size

    def seen_work(self, lengths: list[int]) -> int:
        """Multiplications of attention. lengths: of `pieces`."""
        return attention_work(lengths, self._spec.hidden_size)

    def pieces(
        self,
        hidden: Tensor,
        lengths: list[int],
        angles: tuple[Tensor, Tensor] | None = None,
        seen: Tensor | None = None,
    ) -> Pieces[Tensor]:
        """lengths: of the parts whose rows see one another; rows beyond are padding. angles:
        cosines and sines by which queries and keys rotate; None: they don't. seen: bool, [parts,
        length] of parts that are equally long: which rows the others see; None: all."""
        threads = self._threads
        inputs = (hidden, *(angles or ()))
        three = yield from threads.mapped(self._queries, *inputs, each=self._qkv.size)
        if seen is None:
            mixed = yield from self._seen(three, lengths)
        else:
            mixed = yield from self._seen_in_part(three, lengths, seen)
        rows = (hidden, mixed.flatten(1))
        return (yield from threads.mapped(self._after_attention, *rows, each=self._work_after))

    def _seen(self, three: Tensor, lengths: list[int]) -> Pieces[Tensor]:
        """What attention finds, [rows, heads, head size], of queries, keys and values."""
        query, key, value = three.unbind(1)
        return (yield from self._threads.attended(query, key, value, lengths, self._form.scale))

    def _seen_in_part(self, three: Tensor, lengths: list[int], seen: Tensor) -> Pieces[Tensor]:
        """Does what `_seen` does where some rows aren't seen."""
        found = []
        for part, own in zip(three.split(lengths), seen.to(three.device), strict=True):
            query, key, value = part.unbind(1)
            mask = None if own.all() else own.expand(len(own), -1)
            within, scale = [len(own)], self._form.scale
            found.append(
                (yield from self._threads.attended(query, key, value, within, scale, mask))
            )
        return torch.cat(found)

    def _queries(self, hidden: Tensor, *angles: Tensor) -> Tensor:
        """Queries, keys and values: [rows, 3, heads, head size]."""
        three = self._qkv(self._norms[0](hidden)).unflatten(1, (3, -1))
        if not (self._query_norms or self._head_norms or self._form.value_norm or angles):
            return three.unflatten(2, (self._spec.num_heads, -1))
        query, key, value = three.unbind(1)
        if self._query_norms:
            of_query, of_key = self._query_norms
            query, key = of_query(query.contiguous()), of_key(key.contiguous())
        heads = [each.unflatten(1, (self._spec.num_heads, -1)) for each in (query, key, value)]
        if self._head_norms:
            heads[:2] = (norm(each) for norm, each in zip(self._head_norms, heads, strict=False))
        if self._form.value_norm:
            value = heads[2].contiguous()
            heads[2] = reference.rms_norm(value, self._value_weight, self._spec.norm.eps)
        if angles:
            heads[:2] = (reference.apply_rope(each, *angles) for each in heads[:2])
        return torch.stack(heads, 1)

    def _after_attention(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Computes what comes after the attention, whose result is `mixed`, [rows, hidden]."""
        mixed = self._mixed(mixed)
        if self._output_norms:
            mixed = self._output_norms[0](mixed)
        hidden = hidden + (mixed if not self._scales else self._scales[0] * mixed)
        inner = self._up(self._norms[1](hidden))
        if self._form.gated:
            inner = reference.gated_activation(inner, self._spec.activation)
        else:
            inner = reference.plain_activation(inner, self._spec.activation)
        added = self._down(inner)
        if self._output_norms:
            added = self._output_norms[1](added)
        return hidden + (added if not self._scales else self._scales[1] * added)


def _qkv_order(spec: LayerSizes, form: LayerForm) -> Tensor | None:
    """[3 * size] int64: of which row each row of queries, keys and values is made, so that those of
    a rotary pair come to lie half a head apart, and each head of queries has keys and values; None:
    they do in the file."""
    size = spec.hidden_size
    if form.kv_heads:
        rows = torch.arange(form.kv_heads * spec.head_dim).view(form.kv_heads, 1, -1)
        each = rows.expand(-1, spec.num_heads // form.kv_heads, -1).flatten()
        return torch.cat((torch.arange(size), size + each, size + rows.numel() + each))
    if form.pairs_adjacent:
        rows = torch.arange(size).unflatten(0, (spec.num_heads, -1, 2)).transpose(1, 2).flatten()
    elif form.pairs_by_halves:
        rows = _by_pairs(size, spec.num_heads)
    elif form.pairs_by_axes:
        rows = _by_axes(size, spec.num_heads)
    else:
        return None
    return torch.cat((rows, size + rows, 2 * size + torch.arange(size)))


def _by_pairs(size: int, heads: int) -> Tensor:
    """[size] int64: the quarters of each head in the order first, third, second, fourth."""
    return torch.arange(size).unflatten(0, (heads, 2, 2, -1)).transpose(1, 2).flatten()


def _by_axes(size: int, heads: int) -> Tensor:
    """[size] int64: first halves of all thirds of what turns of a head, second ones, the rest."""
    each = torch.arange(size).unflatten(0, (heads, -1))
    turning = each.shape[1] // 6 * 6
    thirds = each[:, :turning].unflatten(1, (3, 2, -1)).transpose(1, 2).flatten(1)
    return torch.cat((thirds, each[:, turning:]), 1).flatten()
