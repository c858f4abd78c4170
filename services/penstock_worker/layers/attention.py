"""Grouped-query self-attention (Ainslie et al., 2023) with rotary positions."""

from __future__ import annotations

from torch import Tensor

from penstock_worker.attention.interface import HeadNorms
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.step import Step
from penstock_worker.quantisation.interface import Product


class SelfAttention:
    """Maps [rows, hidden] to [rows, hidden], and writes the rows' keys and values to the KV
    cache."""

    def __init__(
        self,
        layer: int,
        qkv: Product,
        output: Product,
        heads: tuple[int, int, int],
        head_dim: int,
        norms: HeadNorms | None = None,
    ) -> None:
        """`layer`: index of the layer's KV cache, counted from this rank's first layer.
        `heads`: numbers of query, key and value heads in the output of `qkv`.
        `norms`: applied to each query and key head before the rotation."""
        self._layer = layer
        self.qkv = qkv
        self.output = output
        self._heads = heads
        self._head_dim = head_dim
        self._norms = norms

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        heads = self.qkv(hidden).unflatten(-1, (-1, self._head_dim))
        query, key, value = heads.split(self._heads, dim=1)
        mixed = step.attention.attend(self._layer, query, key, value, step.rotation, self._norms)
        return self.output(mixed.flatten(1))

    @staticmethod
    def load(parts: Parts, layer: int) -> SelfAttention:
        config, prefix, dim = parts.config, f"layers.{layer}.self_attn", parts.config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        qkv = parts.product(
            [(f"{prefix}.q_proj", queries), (f"{prefix}.k_proj", keys), (f"{prefix}.v_proj", keys)],
            config.hidden_size,
            bias=config.qkv_bias,
        )
        output = parts.summed(
            f"{prefix}.o_proj", config.hidden_size, queries, bias=config.output_bias
        )
        norms = None
        if config.qk_norm:
            query, key = (
                parts.weights.take(f"{prefix}.{name}.weight", (dim,))
                for name in ("q_norm", "k_norm")
            )
            norms = HeadNorms(query, key, config.rms_norm_eps)
        shard = parts.shard
        heads = (len(shard.heads), len(shard.kv_heads), len(shard.kv_heads))
        return SelfAttention(layer - shard.layers.start, qkv, output, heads, dim, norms)
