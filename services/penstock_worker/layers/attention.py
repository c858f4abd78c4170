"""Self-attention with grouped heads (Ainslie et al., 2023) and rotary positions."""

from __future__ import annotations

from torch import Tensor

from penstock.model_config import ModelConfig
from penstock_kernels import reference as ops
from penstock_worker.layers.linear import Linear, RMSNorm
from penstock_worker.layers.step import Step
from penstock_worker.weights import Weights


class SelfAttention:
    """hidden: [rows, hidden] -> [rows, hidden]. Writes the rows' keys and values to the cache.

    query_norm, key_norm: over each head before the rotation, or None.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        qkv: Linear,
        output: Linear,
        query_norm: RMSNorm | None = None,
        key_norm: RMSNorm | None = None,
    ) -> None:
        self.layer = layer
        self.qkv = qkv
        self.output = output
        self.query_norm = query_norm
        self.key_norm = key_norm
        self._heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self._head_dim = config.head_dim

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        heads = self.qkv(hidden).unflatten(-1, (-1, self._head_dim))
        query, key, value = heads.split(self._heads, dim=1)
        if self.query_norm is not None:
            query = self.query_norm(query)
        if self.key_norm is not None:
            key = self.key_norm(key)
        query = ops.apply_rope(query, step.cos, step.sin)
        key = ops.apply_rope(key, step.cos, step.sin)
        mixed = step.attention.attend(self.layer, query, key, value)
        return self.output(mixed.flatten(1))

    @staticmethod
    def load(config: ModelConfig, weights: Weights, layer: int, *, qk_norm: bool) -> SelfAttention:
        """qk_norm: whether the family normalises queries and keys."""
        prefix, dim = f"layers.{layer}.self_attn", config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        qkv = Linear.load(
            weights,
            [(f"{prefix}.q_proj", queries), (f"{prefix}.k_proj", keys), (f"{prefix}.v_proj", keys)],
            config.hidden_size,
            bias=config.qkv_bias,
        )
        output = Linear.load(
            weights, [(f"{prefix}.o_proj", config.hidden_size)], queries, bias=config.output_bias
        )
        if not qk_norm:
            return SelfAttention(config, layer, qkv, output)
        norms = [
            RMSNorm.load(weights, f"{prefix}.{name}", dim, config.rms_norm_eps)
            for name in ("q_norm", "k_norm")
        ]
        return SelfAttention(config, layer, qkv, output, *norms)
