"""One pre-norm transformer layer."""

from __future__ import annotations

from torch import Tensor

from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.parts import Parts, RMSNorm
from penstock_worker.layers.step import Step


class DecoderLayer:
    """A layer whose result is residual + the tensor it returns. The addition is left to the next
    norm, so that one kernel does both."""

    def __init__(
        self,
        attention_norm: RMSNorm,
        attention: SelfAttention,
        feed_forward_norm: RMSNorm,
        feed_forward: FeedForward,
    ) -> None:
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor:
        """`update` is what the previous layer returned, None before the first. Both tensors are
        [rows, hidden]. Modifies `residual`."""
        norm = self.attention_norm
        normed = norm(residual) if update is None else norm.added(update, residual)
        mixed = self.attention(normed, step)
        return self.feed_forward(self.feed_forward_norm.added(mixed, residual))

    @staticmethod
    def load(parts: Parts, layer: int, attention: SelfAttention) -> DecoderLayer:
        prefix, size = f"layers.{layer}", parts.config.hidden_size
        return DecoderLayer(
            parts.norm(f"{prefix}.input_layernorm", size),
            attention,
            parts.norm(f"{prefix}.post_attention_layernorm", size),
            FeedForward.load(parts, layer),
        )
