"""Attention to an encoder's output (Vaswani et al., 2017), and a layer that has it."""

from __future__ import annotations

from torch import Tensor

from penstock_worker.attention.encoded import EncodedAttention
from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.norms import Norm
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.step import Step
from penstock_worker.quantisation.interface import Product

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
