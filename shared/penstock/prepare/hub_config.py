"""ModelConfig from a hub folder's config.json.

Source of the keys: the configuration classes of the transformers library. Releases before 5 write
`rope_theta` and `rope_scaling`; later ones write both into `rope_parameters`.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import HUB_CLASSES, MODEL_NAMES, Family
from penstock.formats.fields import Fields
from penstock.model_config import ModelConfig, RopeScaling
from penstock.prepare.checkpoint import check_config

POOLING_CLASSES = ("Model", "ForSequenceClassification")
"""Ends of the names of the same families' classes without an output head."""


def read_config(fields: Fields) -> ModelConfig:
    """Raises UnsupportedModel for another architecture, or for a variant of one of ours that the
    blocks of the model can't compute."""
    family = _family(fields)
    _refuse_variants(fields)
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", family.default_head_dim or -1)
    if head_dim == -1:
        if num_heads < 1 or hidden_size % num_heads:
            raise UnsupportedModel(
                f"{fields.where}: {num_heads} attention heads don't divide "
                f"the hidden size {hidden_size}"
            )
        head_dim = hidden_size // num_heads
    attention_bias = fields.flag("attention_bias", False)
    max_position = fields.integer("max_position_embeddings")
    rope_theta, rope_scaling = _rope(fields, max_position)
    config = ModelConfig(
        architecture=family.name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_position=max_position,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=family.always_qkv_bias or attention_bias,
        output_bias=attention_bias and not family.always_qkv_bias,
        mlp_bias=fields.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
    )
    config = msgspec.structs.replace(config, **family.hub_values(fields))
    return check_config(config, fields.where)


def _family(fields: Fields) -> Family:
    names = fields.listed("architectures", str)
    for name in names:
        stems = [name.removesuffix(end) for end in POOLING_CLASSES if name.endswith(end)]
        for known in (name, *(f"{stem}ForCausalLM" for stem in stems)):
            if known in HUB_CLASSES:
                return HUB_CLASSES[known]
    raise UnsupportedModel(
        f"{fields.where}: the architecture {', '.join(names) or 'none'} is not served; "
        f"{', '.join(HUB_CLASSES)} are ({MODEL_NAMES})"
    )


def _refuse_variants(fields: Fields) -> None:
    if _slides(fields):
        raise UnsupportedModel(
            f"{fields.where}: sliding-window attention is not served; only full attention is"
        )
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"{fields.where}: hidden_act {activation!r} is not served; silu is")
    for source in (fields, fields.section("rope_parameters")):
        rotary = source.number("partial_rotary_factor", 1.0)
        if rotary != 1.0:
            raise UnsupportedModel(
                f"{fields.where}: partial_rotary_factor {rotary:g} is not served; 1 is"
            )


def _slides(fields: Fields) -> bool:
    if "layer_types" in fields:
        return any(kind != "full_attention" for kind in fields.listed("layer_types", str))
    if "use_sliding_window" in fields:  # Qwen: the window's size is given even where it is off
        return fields.flag("use_sliding_window")
    window = fields.optional_integer("sliding_window")
    return window is not None and window < fields.integer("max_position_embeddings")


def _rope(fields: Fields, max_position: int) -> tuple[float, RopeScaling | None]:
    theta = fields.number("rope_theta", 10_000.0)
    settings = fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    theta = settings.number("rope_theta", theta)
    kind = settings.text("rope_type", settings.text("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in ("linear", "llama3"):
        raise UnsupportedModel(
            f"{fields.where}: RoPE scaling {kind!r} is not served; default, linear and llama3 are"
        )
    factor = settings.number("factor")
    if kind == "linear":
        scaling = RopeScaling(kind="linear", factor=factor)
    else:
        scaling = RopeScaling(
            kind="llama3",
            factor=factor,
            low_freq_factor=settings.number("low_freq_factor"),
            high_freq_factor=settings.number("high_freq_factor"),
            original_max_position=settings.integer(
                "original_max_position_embeddings",
                fields.integer("original_max_position_embeddings", max_position),
            ),
        )
    _check_scaling(scaling, settings)
    return theta, scaling


def _check_scaling(scaling: RopeScaling, settings: Fields) -> None:
    if scaling.factor <= 0 or scaling.original_max_position < 1:
        raise UnsupportedModel(f"{settings.where}: factor and original length must be positive")
    if scaling.kind == "llama3" and not 0 < scaling.low_freq_factor < scaling.high_freq_factor:
        raise UnsupportedModel(
            f"{settings.where}: low_freq_factor {scaling.low_freq_factor:g} and high_freq_factor "
            f"{scaling.high_freq_factor:g} must be positive and ascending"
        )
