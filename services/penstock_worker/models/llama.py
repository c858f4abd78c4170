"""Llama, and the families that differ from it only by fields of ModelConfig."""

from __future__ import annotations

from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.decoder_layer import DecoderLayer
from penstock_worker.layers.parts import Parts
from penstock_worker.models.decoder import DecoderModel


class LlamaModel(DecoderModel):
    """Grouped-query attention and SwiGLU, with biases and with norms on query and key heads where
    the config has them."""

    def load_layer(self, parts: Parts, layer: int) -> DecoderLayer:
        return DecoderLayer.load(parts, layer, SelfAttention.load(parts, layer))
