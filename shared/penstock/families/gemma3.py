"""Gemma 3, its text half: Gemma 2 with normalised queries and keys instead of soft caps, and with
five of six layers in a window, which have rotary positions of their own.

Source: Gemma team, "Gemma 3 technical report", 2025.
"""

from __future__ import annotations

import msgspec

from penstock.families import hub_reading as hub
from penstock.families.family import EncoderFamily, Family
from penstock.families.gemma2 import NAMES, UNSERVED
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec, RopeSpec

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


def _layers(
    kinds: list[str], window: int | None, scale: float, cap: float | None
) -> tuple[LayerSpec, ...]:
    return hub.shared(
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
    )


def _hub(fields: Fields) -> ModelConfig:
    fields = fields.completed(**DEFAULTS)
    sizes = hub.sizes(fields, default_head_dim=256, tied=True)
    hub.activation(fields, "gelu_tanh", key="hidden_activation", default="gelu_pytorch_tanh")
    count = sizes["num_layers"]
    pattern = fields.integer("sliding_window_pattern", 6)
    fields.ignore("_sliding_window_pattern")  # layer_types says it too
    kinds = hub.layer_kinds(fields, count, hub.every_nth_full(pattern, count))
    window, scale = hub.window(fields), fields.number("query_pre_attn_scalar", 256) ** -0.5
    cap = fields.optional_number("attn_logit_softcapping")
    dim = sizes["head_dim"]
    return ModelConfig(
        architecture="gemma3",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6), plus_one=True),
        ropes=(
            hub.rope(fields, dim, kind=hub.FULL, theta=1_000_000.0),
            hub.local_rope(fields, dim, fields.number("rope_local_base_freq", LOCAL_THETA)),
        ),
        layers=_layers(kinds, window, scale, cap),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logits_soft_cap=fields.optional_number("final_logit_softcapping"),
    )


LARGEST = 62
"""Layers of Gemma 3 27B, which alone scales scores by its hidden size: the files don't say so."""


def _gguf_gemma3(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    count, window, dim = sizes["num_layers"], model.window(), sizes["head_dim"]
    size = sizes["hidden_size"] // sizes["num_heads"] if count == LARGEST else dim
    kinds = hub.every_nth_full(6, count)
    local = model.keys.number("rope.freq_base_swa", LOCAL_THETA)
    return ModelConfig(
        architecture="gemma3",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),  # 1 + weight is what the file has
        ropes=(model.rope(dim, theta=1_000_000.0), RopeSpec(theta=local, dims=dim)),
        layers=_layers(kinds, window, size**-0.5, None),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logits_soft_cap=model.keys.optional_number("final_logit_softcapping"),
    )


GEMMA3 = Family(
    "gemma3",
    ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    "Gemma 3 (text)",
    _hub,
    hub_names=NAMES,
    gguf="gemma3",
    read_gguf=_gguf_gemma3,
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
    return _encoder(_gguf_gemma3(model))


def _encoder(config: ModelConfig) -> EncoderConfig:
    layers = tuple(map(_both_ways, config.layers))
    own = msgspec.structs.replace(config, layers=layers)
    return EncoderConfig.of_layers("embeddinggemma", own)


EMBEDDING_GEMMA = EncoderFamily(
    "embeddinggemma",
    ("gemma3_text",),
    both_ways_key="use_bidirectional_attention",
    read_layers=_read_embedding,
    layer_names=GEMMA3.hub_names,
    gguf="gemma-embedding",
    read_gguf=_gguf_embedding,
)
