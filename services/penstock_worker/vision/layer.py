"""A layer of a tower: attention within each part of an item, then feed-forward."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from penstock.layer_spec import NormSpec
from penstock_kernels import reference
from penstock_kernels.reference import encoder as kernels
from penstock_worker.vision.parts import TowerNorm, TowerProduct
from penstock_worker.weights.weights import Weights

LAYER_OF = "layers."


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


class TowerLayer:
    """Maps [rows, hidden] to the same shape."""

    def __init__(
        self, spec: LayerSizes, weights: Weights, number: int, *, gated: bool = False
    ) -> None:
        """gated: whether the feed-forward is activation(gate) * up."""
        at, size, inner = f"{LAYER_OF}{number}", spec.hidden_size, spec.intermediate_size
        self._norms = [TowerNorm(weights, f"{at}.norm{which}", size, spec.norm) for which in (1, 2)]
        qkv = [(f"{at}.qkv", 3 * size)]
        if not weights.has(f"{at}.qkv.weight"):
            qkv = [(f"{at}.{part}_proj", size) for part in "qkv"]
        self._qkv = TowerProduct.load(weights, qkv, size)
        self._mixed = TowerProduct.load(weights, [(f"{at}.out_proj", size)], size)
        names = ("gate_proj", "up_proj") if gated else ("up_proj",)
        self._up = TowerProduct.load(weights, [(f"{at}.{name}", inner) for name in names], size)
        self._down = TowerProduct.load(weights, [(f"{at}.down_proj", size)], inner)
        self._spec = spec
        self._gated = gated

    def __call__(
        self, hidden: Tensor, lengths: list[int], angles: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """lengths: of the parts whose rows see one another; rows beyond are padding to whole
        tiles. angles: cosines and sines by which queries and keys rotate; None: they don't."""
        spec = self._spec
        heads = self._qkv(self._norms[0](hidden)).unflatten(1, (3, spec.num_heads, spec.head_dim))
        query, key, value = heads.unbind(1)
        if angles is not None:
            query, key = (reference.apply_rope(each, *angles) for each in (query, key))
        hidden = hidden + self._mixed(kernels.attend(query, key, value, lengths).flatten(1))
        inner = self._up(self._norms[1](hidden))
        if self._gated:
            inner = reference.gated_activation(inner, spec.activation)
        else:
            inner = reference.plain_activation(inner, spec.activation)
        return hidden + self._down(inner)
