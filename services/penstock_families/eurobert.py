"""EuroBERT: Llama's layers with bidirectional attention.

Source: Boizard et al., "EuroBERT: Scaling multilingual encoders for European languages", 2025;
keys: transformers' EuroBertConfig.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.families.family import EncoderFamily
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.llama import LLAMA, read_gguf
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig, ModelConfig

DEFAULTS: dict[str, Any] = {
    "vocab_size": 128_256,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}
IGNORED = ("clf_pooling", "classifier_pooling", "mask_token", "mask_token_id")


def _read(fields: Fields) -> EncoderConfig:
    fields.ignore(*IGNORED)
    return _encoder(LLAMA.read_hub(fields.completed(**DEFAULTS)))


def _gguf(model: GGUFMetadata) -> EncoderConfig:
    return _encoder(read_gguf(model))


def _encoder(layers: ModelConfig) -> EncoderConfig:
    own = msgspec.structs.replace(layers, architecture="eurobert", tie_word_embeddings=True)
    return EncoderConfig(layers=own)


EUROBERT = EncoderFamily(
    "eurobert",
    ("eurobert",),
    read_layers=_read,
    layer_names=TensorNames(),
    gguf="eurobert",
    read_gguf=_gguf,
)
