"""Qwen 2 and 2.5. Source: Yang et al., "Qwen2 technical report", 2024."""

from __future__ import annotations

from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.decoder_layer import DecoderLayer
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights import Weights


class Qwen2Model(DecoderModel):
    """As Llama, with biases on queries, keys and values (`config.qkv_bias`)."""

    def load_layer(self, weights: Weights, layer: int) -> DecoderLayer:
        attention = SelfAttention.load(self.config, weights, layer, qk_norm=False)
        return DecoderLayer.load(self.config, weights, layer, attention)
