"""Learned queries that see a window of vectors, in layers as BERT's.

Source: Li et al., "BLIP-2", 2023; what they compute, as transformers' Blip2QFormerModel has it.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from penstock.model.layer_spec import NormSpec
from penstock_kernels import reference
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.weights.weights import Weights


class QueryLayers:
    """Layers in which queries attend to one another, and, in each `seeing`-th from the first one
    on, to what is shown to them. Loads its weights when it is constructed."""

    def __init__(
        self,
        weights: Weights,
        at: str,
        size: int,
        *,
        shown: int,
        heads: int,
        inner: int,
        norm: NormSpec,
        layers: int = 1,
        seeing: int = 1,
    ) -> None:
        """at: what names of tensors begin with.  size, shown: numbers of a query, and of a vector
        that is shown.  Raises UnsupportedModel for weights that don't fit."""
        self._first = TowerNorm(weights, f"{at}.layernorm", size, norm)
        self._layers = []
        for number in range(layers):
            layer = f"{at}.encoder.layer.{number}"
            own = _Attention(weights, f"{layer}.attention", size, size, heads, norm)
            seen = None
            if not number % seeing:
                seen = _Attention(weights, f"{layer}.crossattention", size, shown, heads, norm)
            self._layers.append((own, seen, _Behind(weights, layer, size, inner, norm)))

    def query_work(self, share: int) -> int:
        """Multiplications for each query, with its share of what it sees, in vectors."""
        work = 0
        for own, seen, forward in self._layers:
            work += own.query_size + own.key_size + forward.size
            work += 0 if seen is None else seen.query_size + share * seen.key_size
        return work

    def __call__(self, queries: Tensor, shown: Tensor) -> Tensor:
        """[windows, queries, size] of the same and [windows, vectors, shown]."""
        hidden = self._first(queries)
        for own, seen, forward in self._layers:
            hidden = own(hidden, hidden)
            if seen is not None:
                hidden = seen(hidden, shown)
            hidden = forward(hidden)
        return hidden


class _Behind:
    """The feed-forward of queries, whose output is added and then normalised."""

    def __init__(self, weights: Weights, at: str, size: int, inner: int, norm: NormSpec) -> None:
        up, down = f"{at}.intermediate_query.dense", f"{at}.output_query.dense"
        self._up = TowerProduct.load(weights, [(up, inner)], size)
        self._down = TowerProduct.load(weights, [(down, size)], inner)
        self._norm = TowerNorm(weights, f"{at}.output_query.LayerNorm", size, norm)
        self.size = self._up.size + self._down.size

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, 1)
        inner = self._down(reference.plain_activation(self._up(flat), "gelu"))
        return self._norm(inner + flat).unflatten(0, hidden.shape[:2])


class _Attention:
    """Attention whose output is added and then normalised."""

    def __init__(
        self, weights: Weights, at: str, size: int, shown: int, heads: int, norm: NormSpec
    ) -> None:
        keys = [(f"{at}.attention.{name}", size) for name in ("key", "value")]
        self._query = TowerProduct.load(weights, [(f"{at}.attention.query", size)], size)
        self._keys = TowerProduct.load(weights, keys, shown)
        self._mixed = TowerProduct.load(weights, [(f"{at}.output.dense", size)], size)
        self._norm = TowerNorm(weights, f"{at}.output.LayerNorm", size, norm)
        self._heads = heads
        self.query_size, self.key_size = self._query.size + self._mixed.size, self._keys.size

    def __call__(self, hidden: Tensor, shown: Tensor) -> Tensor:
        """[windows, queries, size] of the same and [windows, vectors, shown]."""
        windows, count, size = hidden.shape
        query = self._query(hidden.flatten(0, 1)).view(windows, count, self._heads, -1)
        both = self._keys(shown.flatten(0, 1)).view(
            windows, -1, 2, self._heads, size // self._heads
        )
        key, value = both.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        query = query.transpose(1, 2).contiguous()
        found = functional.scaled_dot_product_attention(query, key, value)
        flat = found.transpose(1, 2).reshape(windows * count, size)
        return self._norm(self._mixed(flat) + hidden.flatten(0, 1)).view(windows, count, size)
