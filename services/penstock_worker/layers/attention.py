"""Grouped-query self-attention (Ainslie et al., 2023) with rotary positions."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import torch

from penstock.model.attention_spec import AttentionSpec
from penstock_kernels.reference import softplus
from penstock_worker.attention.encoded import EncodedAttention
from penstock_worker.attention.interface import PLAIN_RULE, HeadNorms, ScoreRule
from penstock_worker.layers.choosing import BlockIndex
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.parts import NO_NORM, Norm, NormedInput, Parts
from penstock_worker.layers.step import Step
from penstock_worker.quantisation.interface import Product

if TYPE_CHECKING:
    from torch import Tensor

QUERIES_AND_GATES = "q_and_gate_proj"
"""Gives all heads' queries, then all heads' gates of the result."""
GATES = "output_gate_proj"
"""Gives the gates alone, where they have a matrix of their own (AttentionSpec.gate_apart)."""
HEAD_GATES = "head_gates"
"""Gives a gate of the result for each head."""
SUB_NORM = "attn_sub_norm"
"""Norm of what all heads give together."""


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
        gated: bool = False,
        head_gates: Product | None = None,
        soft: bool = False,
        value_norm: Norm = NO_NORM,
        index: BlockIndex | None = None,
        bound: float | None = None,
    ) -> None:
        """`layer`: index of the layer's KV cache, counted from this rank's first layer.
        `heads`: numbers of query, key and value heads in the output of `qkv`. Without value heads,
        values are what keys are; without key heads, too, another layer has stored both.
        `rope`: which of the step's rotations; None: no rotation.
        `head_norms`: applied to each query and key head before the rotation.
        `whole_norms`: applied to all query heads together, and to all key heads.
        `gated`: the queries in the output of `qkv` are followed by as many gates of the result.
        `head_gates`: gives one for each head, [rows, query heads]; `soft`: their softplus weighs.
        `value_norm`: applied to each value head.
        `index`: chooses what is read; `rule` says so, too.
        `bound`: what `qkv` gives is kept within minus and plus that."""
        self._layer = layer
        self.qkv = qkv
        self.output = output
        queries, *rest = heads
        self._heads = (queries, queries if gated else 0, *rest)
        self._head_dim = head_dim
        self._rope = rope
        self._rule = rule
        self._head_norms = head_norms
        self._whole_norms = whole_norms
        self.head_gates = head_gates
        self._soft = soft
        self._value_norm = value_norm
        self._index = index
        self._bound = bound

    def at(self, layer: int) -> SelfAttention:
        """Returns the same attention with the KV cache of another layer, counted as `layer` is."""
        other = copy(self)
        other._layer = layer
        return other

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        if self._index is not None:
            self._index(hidden, step)
        heads = self.qkv(hidden).unflatten(-1, (-1, self._head_dim))
        if self._bound is not None:
            heads = heads.clamp(-self._bound, self._bound)
        query, gate, key, value = heads.split(self._heads, dim=1)
        value = value if value.shape[1] else key
        if self._value_norm is not NO_NORM:
            # They are a part of wider rows, which not every kernel reads.
            value = self._value_norm(value.contiguous())
        query, key = map(_over_all_heads, self._whole_norms, (query, key))
        rotation = None if self._rope is None else step.rotations[self._rope]
        mixed = step.attention.attend(
            self._layer, query, key, value, rotation, self._head_norms, self._rule
        )
        if self.head_gates is not None:
            gate = self.head_gates(hidden)[..., None]
        if self._soft:
            mixed = (mixed.float() * softplus(gate.float())).to(mixed.dtype)
        elif gate.shape[1]:
            mixed = (mixed.float() / (1.0 + torch.exp(-gate.float()))).to(mixed.dtype)
        return self.output(mixed.flatten(1))

    @staticmethod
    def load(parts: Parts, layer: int) -> SelfAttention:
        config, prefix, shard = parts.config, f"layers.{layer}.self_attn", parts.shard
        spec, own = config.layer(layer).attention, config.kv_heads(layer)
        dim, heads = own.size, config.query_heads(layer)
        queries, keys = heads * dim, own.count * dim
        stored = ["k_proj", "v_proj"]
        if spec.reads is not None:
            unread = tuple(f"{prefix}.{name}." for name in (*stored, "k_norm", "v_norm"))
            parts.weights.ignore_those(lambda name: name.startswith(unread))  # some files have them
            stored = []
        if spec.values_of_keys:
            stored = stored[:1]
        first = [(f"{prefix}.q_proj", queries)]
        if spec.gate_apart:
            first.append((f"{prefix}.{GATES}", queries))
        elif spec.output_gate:
            first = [(f"{prefix}.{QUERIES_AND_GATES}", 2 * queries)]
        qkv = parts.product(
            [*first, *((f"{prefix}.{name}", keys) for name in stored)],
            config.attention_inputs,
            bias=spec.qkv_bias,
        )
        output = parts.summed(
            f"{prefix}.o_proj", config.hidden_size, queries, bias=spec.output_bias
        )
        if spec.sub_norm:
            norm = parts.norm_of_parts(f"{prefix}.{SUB_NORM}", queries, 0)
            output = NormedInput(norm, output)
        kv_heads = len(shard.kv_heads) if spec.kv_heads is None else own.count
        head_norms, whole_norms = _norms(parts, layer, (queries, keys), bool(stored))
        return SelfAttention(
            layer - shard.layers.start,
            qkv,
            output,
            (
                len(shard.heads) if spec.query_heads is None else heads,
                kv_heads if stored else 0,
                kv_heads if "v_proj" in stored else 0,
            ),
            dim,
            rope=spec.rope,
            rule=_rule(
                spec,
                _sinks(parts, prefix, heads) if spec.sinks else None,
                causal=config.ignores_spans(spec),
            ),
            head_norms=head_norms,
            whole_norms=whole_norms,
            gated=spec.output_gate,
            head_gates=head_gates(parts, prefix, heads) if spec.head_gate else None,
            soft=spec.head_gate and spec.soft_gate,
            value_norm=parts.weightless_norm(dim) if spec.value_norm and stored else NO_NORM,
            index=_index(parts, layer, spec),
            bound=spec.qkv_bound,
        )


def _index(parts: Parts, layer: int, spec: AttentionSpec) -> BlockIndex | None:
    if spec.blocks is None:
        return None
    if spec.rope is None:
        raise TypeError(f"layer {layer} has an index that doesn't rotate")
    return BlockIndex.load(parts, layer, spec.blocks, spec.rope)


def _norms(
    parts: Parts, layer: int, sizes: tuple[int, int], stores: bool
) -> tuple[HeadNorms | None, tuple[Norm, Norm]]:
    """Norms of queries and keys, over each head and over all heads. sizes: of all query heads, and
    of all key heads."""
    config, prefix = parts.config, f"layers.{layer}.self_attn"
    names = (f"{prefix}.q_norm", f"{prefix}.k_norm")
    spec = config.layer(layer).attention
    norm = spec.norm
    if norm == "head":
        dim = config.kv_heads(layer).size
        query = parts.norm_weight(names[0], dim)
        # A layer without keys has none to normalise.
        key = parts.norm_weight(names[1], dim) if stores else query
        norms = HeadNorms(query, key, config.norm.eps, behind=spec.norm_behind)
        return norms, (NO_NORM, NO_NORM)
    if norm == "whole":
        whole = (
            parts.norm_of_parts(names[0], sizes[0], 0),
            parts.norm_of_parts(names[1], sizes[1], 1),
        )
        return None, whole
    return None, (NO_NORM, NO_NORM)


def _sinks(parts: Parts, prefix: str, heads: int) -> Tensor:
    return parts.weights.take(f"{prefix}.sinks.weight", (heads,), torch.float32)


def head_gates(parts: Parts, prefix: str, heads: int) -> Product:
    """Returns the product that gives a gate for each of so many heads."""
    names = [(f"{prefix}.{HEAD_GATES}", heads)]
    return parts.product(names, parts.config.attention_inputs, bias=False)


def _rule(spec: AttentionSpec, sinks: Tensor | None, *, causal: bool) -> ScoreRule:
    return ScoreRule(
        scale=spec.scale,
        window=spec.window,
        chunk=spec.chunk,
        soft_cap=spec.soft_cap,
        sinks=sinks,
        chosen=spec.blocks is not None,
        causal=causal,
    )


def _over_all_heads(norm: Norm, heads: Tensor) -> Tensor:
    if norm is NO_NORM:
        return heads
    # They are a part of wider rows, which not every kernel reads.
    return norm(heads.flatten(1).contiguous()).view(heads.shape)


# Attention to an encoder's output (Vaswani et al., 2017), and a layer that has it.

CROSS_NORM = "encoder_attn_layer_norm"


class CrossAttention:
    """Maps [rows, hidden] to [rows, hidden]. Keys and values are made of the encoder's rows, once
    for each sequence."""

    def __init__(
        self, layer: int, query: Product, stored: Product, output: Product, head_dim: int
    ) -> None:
        """`layer`: index of the layer's KV cache. `stored` gives all keys, then all values."""
        self._layer = layer
        self.query = query
        self.stored = stored
        self.output = output
        self._head_dim = head_dim

    def store(self, rows: Tensor, encoded: EncodedAttention) -> None:
        """rows: the encoder's, [rows, hidden]."""
        key, value = self.stored(rows).unflatten(-1, (2, -1, self._head_dim)).unbind(1)
        encoded.store(self._layer, key, value)

    def __call__(self, hidden: Tensor, encoded: EncodedAttention) -> Tensor:
        query = self.query(hidden).unflatten(-1, (-1, self._head_dim))
        return self.output(encoded.attend(self._layer, query).flatten(1))

    @staticmethod
    def load(parts: Parts, layer: int) -> CrossAttention:
        config, prefix = parts.config, f"layers.{layer}.encoder_attn"
        spec, hidden = config.layer(layer).attention, config.hidden_size
        queries = config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        bias = spec.qkv_bias
        return CrossAttention(
            layer - parts.shard.layers.start,
            parts.product([(f"{prefix}.q_proj", queries)], hidden, bias=bias),
            parts.product(
                [(f"{prefix}.k_proj", keys), (f"{prefix}.v_proj", keys)], hidden, bias=bias
            ),
            parts.product([(f"{prefix}.o_proj", hidden)], queries, bias=spec.output_bias),
            config.head_dim,
        )


class CrossLayer:
    """A Layer of attention, attention to the encoder's output, and feed-forward, with a norm before
    each."""

    def __init__(
        self,
        attention: tuple[Norm, SelfAttention],
        crossed: tuple[Norm, CrossAttention],
        feed_forward: tuple[Norm, FeedForward],
    ) -> None:
        self.attention_norm, self.attention = attention
        self.cross_norm, self.crossed = crossed
        self.feed_forward_norm, self.feed_forward = feed_forward

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor:
        norm = self.attention_norm
        normed = norm(residual) if update is None else norm.added(update, residual)
        mixed = self.attention(normed, step)
        crossed = self.crossed(self.cross_norm.added(mixed, residual), step.encoded)
        return self.feed_forward(self.feed_forward_norm.added(crossed, residual))
