"""The index that chooses the tokens that a layer's attention reads (DeepSeek-AI, "DeepSeek-V3.2",
2025), or blocks of them (MiniMax, "MiniMax M3", 2026).

DeepSeek's own code multiplies queries and keys by a Hadamard matrix, which changes no product, and
rounds them to 8 bits. Constant factors of all scores are left out here: they change no choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.attention_spec import IndexSpec
from penstock.model.block_index_spec import BlockIndexSpec
from penstock_worker.attention.interface import (
    BlockChoosingAttention,
    ChoosingAttention,
    HeadNorms,
    IndexRows,
)
from penstock_worker.layers.parts import LayerNorm, Norm, Parts
from penstock_worker.layers.step import Step
from penstock_worker.quantisation.interface import Product
from penstock_worker.weights.names import (
    INDEX_KEY,
    INDEX_KEY_NORM,
    INDEX_QUERY,
    INDEX_QUERY_NORM,
    INDEX_WEIGHTS,
)

if TYPE_CHECKING:
    from torch import Tensor


class ChoosingIndex:
    """Chooses tokens for the rows of a step, and writes the rows' keys to the cache."""

    def __init__(
        self,
        layer: int,
        spec: IndexSpec,
        query: Product,
        key: Product,
        key_norm: Norm,
        weigher: Product,
        rope: int,
    ) -> None:
        """`layer`: index of the layer's KV cache. `query` maps the vector that attention's queries
        are made of, the others the hidden state. `rope`: which of the step's rotations."""
        self._layer = layer
        self._spec = spec
        self._query = query
        self._key = key
        self._key_norm = key_norm
        self._weigher = weigher
        self._rope = rope

    def __call__(self, hidden: Tensor, vector: Tensor, step: Step) -> None:
        """`hidden`: [rows, hidden]. `vector`: [rows, query rank]."""
        attention = step.attention
        if not isinstance(attention, ChoosingAttention):
            raise TypeError("this attention chooses no tokens")
        rows = IndexRows(
            query=self._query(vector).unflatten(-1, (self._spec.heads, self._spec.size)),
            key=self._key_norm(self._key(hidden))[:, None],
            weights=self._weigher(hidden),
        )
        attention.choose(self._layer, rows, step.rotations[self._rope], self._spec.most)

    @staticmethod
    def load(parts: Parts, layer: int, spec: IndexSpec, rank: int, rope: int) -> ChoosingIndex:
        """`rank`: size of the vector that queries are made of."""
        prefix, hidden = f"layers.{layer}.self_attn", parts.config.hidden_size

        def product(name: str, outputs: int, inputs: int) -> Product:
            return parts.product([(f"{prefix}.{name}", outputs)], inputs, bias=False)

        def of_norm(kind: str) -> Tensor:
            return parts.weights.take(f"{prefix}.{INDEX_KEY_NORM}.{kind}", (spec.size,))

        return ChoosingIndex(
            layer - parts.shard.layers.start,
            spec,
            product(INDEX_QUERY, spec.heads * spec.size, rank),
            product(INDEX_KEY, spec.size, hidden),
            LayerNorm(parts.ops, of_norm("weight"), of_norm("bias"), spec.eps),
            product(INDEX_WEIGHTS, spec.heads, hidden),
            rope,
        )


class BlockIndex:
    """Chooses blocks for the rows of a step, and writes the rows' keys to the cache."""

    def __init__(
        self,
        layer: int,
        spec: BlockIndexSpec,
        query: Product,
        key: Product,
        norms: HeadNorms,
        rope: int,
    ) -> None:
        """`layer`: index of the layer's KV cache. `query` and `key` map the hidden state. `norms`:
        of each head's query, and of the key. `rope`: which of the step's rotations."""
        self._layer = layer
        self._spec = spec
        self._query = query
        self._key = key
        self._norms = norms
        self._rope = rope

    def __call__(self, hidden: Tensor, step: Step) -> None:
        """`hidden`: [rows, hidden]."""
        attention = step.attention
        if not isinstance(attention, BlockChoosingAttention):
            raise TypeError("this attention chooses no blocks")
        query = self._query(hidden).unflatten(-1, (self._spec.heads, self._spec.size))
        key = self._key(hidden)[:, None]
        rotation = step.rotations[self._rope]
        attention.choose_blocks(self._layer, query, key, rotation, self._norms, self._spec)

    @staticmethod
    def load(parts: Parts, layer: int, spec: BlockIndexSpec, rope: int) -> BlockIndex:
        prefix, hidden = f"layers.{layer}.self_attn", parts.config.hidden_size

        def product(name: str, outputs: int) -> Product:
            return parts.product([(f"{prefix}.{name}", outputs)], hidden, bias=False)

        def norm(name: str) -> Tensor:
            return parts.norm_weight(f"{prefix}.{name}", spec.size)

        return BlockIndex(
            layer - parts.shard.layers.start,
            spec,
            product(INDEX_QUERY, spec.heads * spec.size),
            product(INDEX_KEY, spec.size),
            HeadNorms(norm(INDEX_QUERY_NORM), norm(INDEX_KEY_NORM), parts.config.norm.eps),
            rope,
        )
