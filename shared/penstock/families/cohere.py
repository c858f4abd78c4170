"""Command R and R7B (Cohere): attention and feed-forward in parallel, after one layer norm without
bias; in R7B three of four layers in a window, and the fourth without positions.

Source: the model cards, and transformers' classes.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, LayerSpec, NormSpec

PAIRS = TensorNames(pairs_adjacent=True)


def _model(
    fields: Fields,
    name: str,
    sizes: dict[str, Any],
    layers: tuple[LayerSpec, ...],
    theta: float = 10_000.0,
) -> ModelConfig:
    hub.activation(fields, "silu")
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=NormSpec(kind="layer", eps=fields.number("layer_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=theta),),
        layers=layers,
        logits_multiplier=fields.number("logit_scale", 0.0625),
    )


def _hub(fields: Fields) -> ModelConfig:
    sizes, bias = hub.sizes(fields, tied=True), fields.flag("attention_bias", False)
    if fields.flag("use_qk_norm", False):
        raise UnsupportedModel(f"{fields.where}: use_qk_norm is true; only false is served")
    attention = AttentionSpec(qkv_bias=bias, output_bias=bias)
    layer = LayerSpec(attention=attention, order="parallel")
    return _model(fields, "cohere", sizes, (layer,), theta=500_000.0)


def _sliding_layers(kinds: list[str], window: int | None, *, bias: bool) -> tuple[LayerSpec, ...]:
    """Layers that slide have positions, the others have none."""
    layers = []
    for kind in kinds:
        slides = kind == hub.SLIDING
        attention = AttentionSpec(
            window=window if slides else None,
            rope=0 if slides else None,
            qkv_bias=bias,
            output_bias=bias,
        )
        layers.append(LayerSpec(attention=attention, order="parallel"))
    return hub.shared(layers)


def _hub2(fields: Fields) -> ModelConfig:
    sizes, bias = hub.sizes(fields, tied=True), fields.flag("attention_bias", False)
    # What all releases say alike, and transformers does not read.
    fields.ignore("order_of_interleaved_layers", "position_embedding_type", "rotary_pct")
    fields.ignore("use_gated_activation", "use_parallel_block", "use_parallel_embedding")
    fields.ignore("layer_switch", "use_embedding_sharing", "_sliding_window_pattern")
    count, pattern = sizes["num_layers"], fields.integer("sliding_window_pattern", 4)
    window = hub.window(fields)
    kinds = hub.layer_kinds(fields, count, hub.every_nth_full(pattern, count))
    return _model(fields, "cohere2", sizes, _sliding_layers(kinds, window, bias=bias))


def _gguf_cohere(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    return ModelConfig(
        architecture="cohere",
        **sizes,
        norm=NormSpec(kind="layer", eps=model.layer_norm_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(LayerSpec(order="parallel"),),
        logits_multiplier=model.keys.number("logit_scale"),
    )


COHERE = Family(
    "cohere",
    ("CohereForCausalLM",),
    "Command R",
    _hub,
    hub_names=PAIRS,
    gguf="command-r",
    read_gguf=_gguf_cohere,
    gguf_names=PAIRS,
)


def _gguf_cohere2(model: GGUFMetadata) -> ModelConfig:
    sizes, window = model.sizes(), model.window()
    kinds = hub.every_nth_full(4, sizes["num_layers"])
    return ModelConfig(
        architecture="cohere2",
        **sizes,
        norm=NormSpec(kind="layer", eps=model.layer_norm_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=_sliding_layers(kinds, window, bias=False),
        logits_multiplier=model.keys.number("logit_scale"),
    )


COHERE2 = Family(
    "cohere2",
    ("Cohere2ForCausalLM",),
    "Command R7B",
    _hub2,
    hub_names=PAIRS,
    gguf="cohere2",
    read_gguf=_gguf_cohere2,
    gguf_names=PAIRS,
)
