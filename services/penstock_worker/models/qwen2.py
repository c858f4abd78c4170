"""Qwen 2 and 2.5. Source: Yang et al., "Qwen2 technical report", 2024."""

from __future__ import annotations

from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.decoder_layer import DecoderLayer
from penstock_worker.layers.parts import Parts
from penstock_worker.models.decoder import DecoderModel


class Qwen2Model(DecoderModel):
    """As Llama, with biases on queries, keys and values (`config.qkv_bias`)."""

    def load_layer(self, parts: Parts, layer: int) -> DecoderLayer:
        attention = SelfAttention.load(parts, layer, qk_norm=False)
        return DecoderLayer.load(parts, layer, attention)
