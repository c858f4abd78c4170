"""One pre-norm transformer layer."""

from __future__ import annotations

from torch import Tensor

from penstock.model_config import ModelConfig
from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.linear import RMSNorm
from penstock_worker.layers.step import Step
from penstock_worker.weights import Weights


class DecoderLayer:
    """hidden: [rows, hidden] -> [rows, hidden]."""

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

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), step)
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))

    @staticmethod
    def load(
        config: ModelConfig, weights: Weights, layer: int, attention: SelfAttention
    ) -> DecoderLayer:
        prefix, size, eps = f"layers.{layer}", config.hidden_size, config.rms_norm_eps
        return DecoderLayer(
            RMSNorm.load(weights, f"{prefix}.input_layernorm", size, eps),
            attention,
            RMSNorm.load(weights, f"{prefix}.post_attention_layernorm", size, eps),
            FeedForward.load(config, weights, layer),
        )
