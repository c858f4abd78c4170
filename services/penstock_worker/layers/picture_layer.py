"""A layer whose attention goes to pictures' rows alone, and whose halves learned gates weigh.

Source: Grattafiori et al., "The Llama 3 herd of models", 2024, section 7. For a token before all
pictures both halves add nothing, as in the original code; in transformers 5.17 it attends to the
pictures after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock_kernels import reference
from penstock_worker.attention.encoded import EncodedAttention
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.parts import Norm, Parts
from penstock_worker.layers.step import Step
from penstock_worker.quantisation.interface import Product

if TYPE_CHECKING:
    from torch import Tensor


class PictureAttention:
    """Attention to the rows of pictures."""

    def __init__(
        self,
        layer: int,
        products: tuple[Product, Product, Product],
        norms: tuple[Tensor, Tensor],
        eps: float,
        head_dim: int,
    ) -> None:
        """`layer`: index of the layer's KV cache. products: of queries; of keys, then values; of
        the output. norms: of each head's queries, and keys."""
        self._layer = layer
        self.query, self.stored, self.output = products
        self._query_norm, self._key_norm = norms
        self._eps, self._head_dim = eps, head_dim

    def store(self, rows: Tensor, encoded: EncodedAttention) -> None:
        """rows: the pictures', [rows, hidden]."""
        key, value = self.stored(rows).unflatten(-1, (2, -1, self._head_dim)).unbind(1)
        key = reference.rms_norm(key.contiguous(), self._key_norm, self._eps)
        encoded.store(self._layer, key, value)

    def __call__(self, hidden: Tensor, encoded: EncodedAttention) -> Tensor:
        query = self.query(hidden).unflatten(-1, (-1, self._head_dim))
        query = reference.rms_norm(query.contiguous(), self._query_norm, self._eps)
        return self.output(encoded.attend(self._layer, query).flatten(1))

    @staticmethod
    def load(parts: Parts, layer: int) -> PictureAttention:
        config, at = parts.config, f"layers.{layer}.cross_attn"
        hidden, size = config.hidden_size, config.head_dim
        queries, keys = config.num_heads * size, config.num_kv_heads * size
        stored = [(f"{at}.k_proj", keys), (f"{at}.v_proj", keys)]
        products = (
            parts.product([(f"{at}.q_proj", queries)], hidden, bias=False),
            parts.product(stored, hidden, bias=False),
            parts.product([(f"{at}.o_proj", hidden)], queries, bias=False),
        )
        of_query, of_key = (
            parts.weights.take(f"{at}.{which}_norm.weight", (size,)) for which in "qk"
        )
        own = layer - parts.shard.layers.start
        return PictureAttention(own, products, (of_query, of_key), config.norm.eps, size)


class PictureLayer:
    """A Layer of attention to pictures and feed-forward, with a norm before each."""

    def __init__(
        self,
        norms: tuple[Norm, Norm],
        crossed: PictureAttention,
        feed_forward: FeedForward,
        gates: tuple[Tensor, Tensor],
    ) -> None:
        """gates: factors of what attention, and feed-forward, add."""
        self.attention_norm, self.feed_forward_norm = norms
        self.crossed, self.feed_forward = crossed, feed_forward
        self._attention_gate, self._feed_forward_gate = gates

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor:
        norm, encoded = self.attention_norm, step.encoded
        normed = norm(residual) if update is None else norm.added(update, residual)
        mixed = self.crossed(normed, encoded) * self._attention_gate
        made = self.feed_forward(self.feed_forward_norm.added(mixed, residual))
        if encoded.seeing is not None:
            made = made * encoded.seeing.to(made.dtype)
        return made * self._feed_forward_gate

    @staticmethod
    def load(parts: Parts, layer: int, norms: tuple[Norm, Norm]) -> PictureLayer:
        """Reads layer number `layer`."""
        attention, feed_forward = (
            torch.tanh(parts.weights.take(f"layers.{layer}.cross_attn_{half}_gate", (1,)))
            for half in ("attn", "mlp")
        )
        return PictureLayer(
            norms,
            PictureAttention.load(parts, layer),
            FeedForward.load(parts, layer),
            (attention, feed_forward),
        )
