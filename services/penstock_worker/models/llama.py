"""Llama, and the families that differ from it only in what their ModelConfig says."""

from __future__ import annotations

from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.decoder_layer import DecoderLayer
from penstock_worker.layers.parts import Parts
from penstock_worker.models.decoder import DecoderModel


class LlamaModel(DecoderModel):
    """Grouped-query attention and SwiGLU; biases, and norms over heads of q and k, where the config
    has them."""

    def load_layer(self, parts: Parts, layer: int) -> DecoderLayer:
        return DecoderLayer.load(parts, layer, SelfAttention.load(parts, layer))
