"""Qwen 3, dense. Source: Yang et al., "Qwen3 technical report", 2025."""

from __future__ import annotations

from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.decoder_layer import DecoderLayer
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights import Weights


class Qwen3Model(DecoderModel):
    """As Llama, with queries and keys normalised head by head, and a head size of its own."""

    def load_layer(self, weights: Weights, layer: int) -> DecoderLayer:
        attention = SelfAttention.load(self.config, weights, layer, qk_norm=self.config.qk_norm)
        return DecoderLayer.load(self.config, weights, layer, attention)
