"""EmbeddingGemma: Gemma 3's text half, whose attention looks both ways.

Source: Vera et al., "EmbeddingGemma: Powerful and Lightweight Text Representations", 2025; keys:
transformers' Gemma3TextConfig.
"""

from __future__ import annotations

import msgspec

from penstock.families.encoder import EncoderFamily
from penstock.families.gemma3 import GEMMA3
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig
from penstock.model.layer_spec import LayerSpec


def _both_ways(layer: LayerSpec) -> LayerSpec:
    """A file's window has room for the tokens on both sides."""
    rule = layer.attention
    if rule.window is None:
        return layer
    rule = msgspec.structs.replace(rule, window=rule.window // 2 + 1)
    return msgspec.structs.replace(layer, attention=rule)


def _layers(fields: Fields) -> EncoderConfig:
    fields.flag("use_bidirectional_attention")
    config = GEMMA3.read_hub(fields)
    layers = tuple(map(_both_ways, config.layers))
    own = msgspec.structs.replace(config, layers=layers)
    return EncoderConfig.of_layers("embeddinggemma", own)


EMBEDDING_GEMMA = EncoderFamily(
    "embeddinggemma",
    ("gemma3_text",),
    both_ways_key="use_bidirectional_attention",
    read_layers=_layers,
    layer_names=GEMMA3.hub_names,
)
