"""The Llama family: Llama 2 and 3, SmolLM, Mistral without sliding windows, and relatives.

Source: Touvron et al., "Llama 2", 2023; Grattafiori et al., "The Llama 3 herd of models", 2024.
"""

from __future__ import annotations

from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.decoder_layer import DecoderLayer
from penstock_worker.layers.parts import Parts
from penstock_worker.models.decoder import DecoderModel


class LlamaModel(DecoderModel):
    """Grouped attention and SwiGLU; biases only where the configuration has them."""

    def load_layer(self, parts: Parts, layer: int) -> DecoderLayer:
        attention = SelfAttention.load(parts, layer, qk_norm=False)
        return DecoderLayer.load(parts, layer, attention)
