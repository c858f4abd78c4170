"""Grouped-query self-attention (Ainslie et al., 2023) with rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.layer_spec import AttentionSpec
from penstock_worker.attention.interface import PLAIN_RULE, HeadNorms, ScoreRule
from penstock_worker.layers.norms import NO_NORM, Norm
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
        *,
        rope: int | None = 0,
        rule: ScoreRule = PLAIN_RULE,
        head_norms: HeadNorms | None = None,
        whole_norms: tuple[Norm, Norm] = (NO_NORM, NO_NORM),
    ) -> None:
        """`layer`: index of the layer's KV cache, counted from this rank's first layer.
        `heads`: numbers of query, key and value heads in the output of `qkv`.
        `rope`: which of the step's rotations; None: no rotation.
        `head_norms`: applied to each query and key head before the rotation.
        `whole_norms`: applied to all query heads together, and to all key heads."""
        self._layer = layer
        self.qkv = qkv
        self.output = output
        self._heads = heads
        self._head_dim = head_dim
        self._rope = rope
        self._rule = rule
        self._head_norms = head_norms
        self._whole_norms = whole_norms

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        heads = self.qkv(hidden).unflatten(-1, (-1, self._head_dim))
        query, key, value = heads.split(self._heads, dim=1)
        query, key = map(_over_all_heads, self._whole_norms, (query, key))
        rotation = None if self._rope is None else step.rotations[self._rope]
        mixed = step.attention.attend(
            self._layer, query, key, value, rotation, self._head_norms, self._rule
        )
        return self.output(mixed.flatten(1))

    @staticmethod
    def load(parts: Parts, layer: int) -> SelfAttention:
        config, prefix, dim = parts.config, f"layers.{layer}.self_attn", parts.config.head_dim
        spec = config.layer(layer).attention
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        qkv = parts.product(
            [(f"{prefix}.q_proj", queries), (f"{prefix}.k_proj", keys), (f"{prefix}.v_proj", keys)],
            config.hidden_size,
            bias=spec.qkv_bias,
        )
        output = parts.summed(
            f"{prefix}.o_proj", config.hidden_size, queries, bias=spec.output_bias
        )
        head_norms, whole_norms = None, (NO_NORM, NO_NORM)
        names = (f"{prefix}.q_norm", f"{prefix}.k_norm")
        if spec.norm == "head":
            query, key = (parts.norm_weight(name, dim) for name in names)
            head_norms = HeadNorms(query, key, config.norm.eps)
        elif spec.norm == "whole":
            whole_norms = (
                parts.norm_of_parts(names[0], queries, 0),
                parts.norm_of_parts(names[1], keys, 1),
            )
        shard = parts.shard
        return SelfAttention(
            layer - shard.layers.start,
            qkv,
            output,
            (len(shard.heads), len(shard.kv_heads), len(shard.kv_heads)),
            dim,
            rope=spec.rope,
            rule=_rule(spec, _sinks(parts, prefix) if spec.sinks else None),
            head_norms=head_norms,
            whole_norms=whole_norms,
        )


def _sinks(parts: Parts, prefix: str) -> Tensor:
    return parts.weights.take(f"{prefix}.sinks.weight", (parts.config.num_heads,), torch.float32)


def _rule(spec: AttentionSpec, sinks: Tensor | None) -> ScoreRule:
    return ScoreRule(scale=spec.scale, window=spec.window, soft_cap=spec.soft_cap, sinks=sinks)


def _over_all_heads(norm: Norm, heads: Tensor) -> Tensor:
    if norm is NO_NORM:
        return heads
    # They are a part of wider rows, which not every kernel reads.
    return norm(heads.flatten(1).contiguous()).view(heads.shape)
