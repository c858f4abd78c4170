"""Qwen 3, dense. Source: Yang et al., "Qwen3 technical report", 2025."""

from __future__ import annotations

from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.decoder_layer import DecoderLayer
from penstock_worker.layers.parts import Parts
from penstock_worker.models.decoder import DecoderModel


class Qwen3Model(DecoderModel):
    """As Llama, with queries and keys normalised head by head, and a head size of its own."""

    def load_layer(self, parts: Parts, layer: int) -> DecoderLayer:
        attention = SelfAttention.load(parts, layer, qk_norm=parts.config.qk_norm)
        return DecoderLayer.load(parts, layer, attention)
