"""Gemma 3, its text half: Gemma 2 with normalised queries and keys instead of soft caps, and with
five of six layers in a window, which have rotary positions of their own.

Source: Gemma team, "Gemma 3 technical report", 2025.
"""

from __future__ import annotations

import msgspec

from penstock.families import hub_reading as hub
from penstock.families.family import EncoderFamily, Family
from penstock.families.gemma2 import NAMES, UNSERVED, gemma_norm
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.source import GGUFSource, HubSource, Source, decoder, of_gguf, of_hub
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec
from penstock.model.rope_spec import RopeSpec

LOCAL_THETA = 10_000.0
"""Base of the rotation in the layers with a window, where config.json doesn't say."""


DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
"""What releases with a vision tower leave out: the defaults of transformers' Gemma3TextConfig."""


LARGEST = 62
"""Layers of Gemma 3 27B, which alone scales scores by its hidden size: GGUF files don't say so."""


def _read(source: Source) -> ModelConfig:
    if isinstance(source, HubSource):
        source = HubSource(source.fields.completed(**DEFAULTS))
    sizes, keys = source.sizes(head_dim=256, tied=True), source.fields
    source.activation("gelu_tanh", key="hidden_activation", default="gelu_pytorch_tanh")
    count, dim = sizes["num_layers"], sizes["head_dim"]
    kinds = hub.every_nth_full(source.integer("sliding_window_pattern", 6), count)
    source.ignore("_sliding_window_pattern")  # layer_types says it too
    if isinstance(source, GGUFSource):
        window, cap = source.window(), None
        theta = keys.number("rope.freq_base_swa", LOCAL_THETA)
        ropes = source.model.rope(dim, theta=1_000_000.0), RopeSpec(theta=theta, dims=dim)
    else:
        kinds, window = hub.layer_kinds(keys, count, kinds), hub.window(keys)
        cap = keys.optional_number("attn_logit_softcapping")
        theta = keys.number("rope_local_base_freq", LOCAL_THETA)
        whole = hub.rope(keys, dim, kind=hub.FULL, theta=1_000_000.0)
        ropes = whole, hub.local_rope(keys, dim, theta)
    size = sizes["hidden_size"] // max(sizes["num_heads"], 1) if count == LARGEST else dim
    scale = source.number("query_pre_attn_scalar", 256, without=size) ** -0.5
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                window=window if kind == hub.SLIDING else None,
                scale=scale,
                soft_cap=cap,
                rope=1 if kind == hub.SLIDING else 0,
                norm="head",
            ),
            feed_forward=FeedForwardSpec(activation="gelu_tanh"),
            order="sandwich",
        )
        for kind in kinds
    ]
    return decoder(
        source,
        "gemma3",
        sizes,
        layers,
        norm=gemma_norm(source),
        ropes=ropes,
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logits_soft_cap=keys.optional_number("final_logit_softcapping"),
    )


GEMMA3 = Family(
    "gemma3",
    ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    "Gemma 3 (text)",
    of_hub(_read),
    hub_names=NAMES,
    gguf="gemma3",
    read_gguf=of_gguf(_read),
    unserved=UNSERVED,
)


# EmbeddingGemma: Gemma 3's text half, whose attention looks both ways.
#
# Source: Vera et al., "EmbeddingGemma: Powerful and Lightweight Text Representations", 2025; keys:
# transformers' Gemma3TextConfig.


def _both_ways(layer: LayerSpec) -> LayerSpec:
    """A file's window has room for the tokens on both sides."""
    rule = layer.attention
    if rule.window is None:
        return layer
    rule = msgspec.structs.replace(rule, window=rule.window // 2 + 1)
    return msgspec.structs.replace(layer, attention=rule)


def _read_embedding(fields: Fields) -> EncoderConfig:
    fields.flag("use_bidirectional_attention")
    return _encoder(GEMMA3.read_hub(fields))


def _gguf_embedding(model: GGUFMetadata) -> EncoderConfig:
    return _encoder(_read(GGUFSource(model)))


def _encoder(config: ModelConfig) -> EncoderConfig:
    layers = tuple(map(_both_ways, config.layers))
    own = msgspec.structs.replace(config, architecture="embeddinggemma", layers=layers)
    return EncoderConfig(layers=own)


EMBEDDING_GEMMA = EncoderFamily(
    "embeddinggemma",
    ("gemma3_text",),
    both_ways_key="use_bidirectional_attention",
    read_layers=_read_embedding,
    layer_names=GEMMA3.hub_names,
    gguf="gemma-embedding",
    read_gguf=_gguf_embedding,
)
