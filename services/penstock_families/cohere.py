"""Command R and R7B (Cohere): attention and feed-forward in parallel, after one layer norm without
bias; in R7B three of four layers in a window, and the fourth without positions. North Mini Code:
R7B's layers with experts, and with other norms.

Source: the model cards, and transformers' classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import RMS_EPS, GGUFMetadata
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import OUTPUT, QUERY, GGUFSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec, RowFactors
from penstock.model.rope_spec import RopeSpec

PAIRS = TensorNames(pairs_adjacent=True)


def _model(
    source: Source,
    name: str,
    sizes: dict[str, Any],
    layers: Iterable[LayerSpec],
    theta: float = 10_000.0,
) -> ModelConfig:
    source.activation("silu")
    norm = NormSpec(kind="layer", eps=source.layer_norm_eps())
    by = source.number("logit_scale", 0.0625, "logit_scale")
    return decoder(source, name, sizes, layers, norm=norm, theta=theta, logits_multiplier=by)


def _cohere(source: Source) -> ModelConfig:
    if source.flag("use_qk_norm", False):
        raise UnsupportedModel(f"{source.fields.where}: use_qk_norm is true; only false is served")
    attention = AttentionSpec(qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT))
    layer = LayerSpec(attention=attention, order="parallel")
    return _model(source, "cohere", source.sizes(tied=True), [layer], theta=500_000.0)


def _each_sliding(kinds: list[str], window: int | None, *, bias: bool) -> list[LayerSpec]:
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
    return layers


def _cohere2(source: Source) -> ModelConfig:
    sizes, bias, keys = source.sizes(tied=True), source.bias(QUERY), source.fields
    # What all releases say alike, and transformers does not read.
    source.ignore("order_of_interleaved_layers", "position_embedding_type", "rotary_pct")
    source.ignore("use_gated_activation", "use_parallel_block", "use_parallel_embedding")
    source.ignore("layer_switch", "use_embedding_sharing", "_sliding_window_pattern")
    count = sizes["num_layers"]
    kinds = hub.every_nth_full(source.integer("sliding_window_pattern", 4), count)
    if isinstance(source, GGUFSource):
        window = source.window()
    else:
        window, kinds = hub.window(keys), hub.layer_kinds(keys, count, kinds)
    return _model(source, "cohere2", sizes, _each_sliding(kinds, window, bias=bias))


COHERE = Family(
    "cohere",
    ("CohereForCausalLM",),
    "Command R",
    of_hub(_cohere),
    hub_names=PAIRS,
    gguf="command-r",
    read_gguf=of_gguf(_cohere),
    gguf_names=PAIRS,
)


COHERE2 = Family(
    "cohere2",
    ("Cohere2ForCausalLM",),
    "Command R7B",
    of_hub(_cohere2),
    hub_names=PAIRS,
    gguf="cohere2",
    read_gguf=of_gguf(_cohere2),
    gguf_names=PAIRS,
)


def _hub2_moe(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields, default_head_dim=128, tied=True)
    fields.ignore("rotary_pct", "use_gated_activation", "use_parallel_block", "use_qk_norm")
    count, inner = sizes["num_layers"], sizes["intermediate_size"]
    first = fields.integer("first_k_dense_replace", 0)
    dense = _dense_layers(fields, count, first)
    every, leading = fields.integer("sliding_window_pattern", 4), min(first, count)
    of_dense = fields.integer("prefix_dense_sliding_window_pattern", 1)
    usual = hub.every_nth_full(of_dense, leading) + hub.every_nth_full(every, count - leading)
    return _sparse_model(
        sizes | {"intermediate_size": fields.integer("prefix_dense_intermediate_size", inner)},
        _hub_norm(fields),
        hub.rope(fields, sizes["head_dim"]),
        hub.layer_kinds(fields, count, usual),
        hub.window(fields.completed(sliding_window=4096)),
        [None if each else _hub_experts(fields, inner) for each in dense],
        fields.number("logit_scale", 0.0625),
        bias=fields.flag("attention_bias", False),
        turned=of_dense == 1,
    )


def _dense_layers(fields: Fields, count: int, first: int) -> list[bool]:
    """Whether each layer has no experts: as `mlp_layer_types` says, or the `first` ones."""
    kinds = ["dense"] * first + ["sparse"] * max(count - first, 0)
    listed = fields.completed(mlp_layer_types=kinds[:count])
    return [not each for each in hub.sparse_behind(listed, count)]


def _hub_norm(fields: Fields) -> NormSpec:
    """An RMS norm where its epsilon is stated."""
    fields.ignore("layer_norm_eps")
    eps = fields.optional_number("rms_norm_eps")
    if eps is not None:
        return NormSpec(eps=eps)
    return NormSpec(kind="layer", eps=fields.number("layer_norm_eps", 1e-5))


def _hub_experts(fields: Fields, inner: int) -> ExpertsSpec:
    router = fields.text("expert_selection_fn", "softmax")
    if router not in ("softmax", "sigmoid"):
        raise fields.wrong("expert_selection_fn", "'softmax' or 'sigmoid'")
    mean = fields.text("shared_expert_combination_strategy", "average")
    if mean not in ("average", "sum"):
        raise fields.wrong("shared_expert_combination_strategy", "'average' or 'sum'")
    shared = fields.integer("num_shared_experts", 0)
    normalised = fields.flag("norm_topk_prob", True)
    return ExpertsSpec(
        **hub.expert_counts(
            fields.completed(num_experts=8, num_experts_per_tok=2), "num_experts", "num_experts"
        ),
        inner=inner,
        router="softmax" if router == "softmax" else "sigmoid",
        normalised=router == "softmax" or normalised,
        scale=0.5 if shared and mean == "average" else 1.0,
        shared_inner=inner * shared,
    )


def _sparse_model(
    sizes: dict[str, Any],
    norm: NormSpec,
    rope: RopeSpec,
    kinds: list[str],
    window: int | None,
    experts: list[ExpertsSpec | None],
    logits: float,
    *,
    bias: bool,
    turned: bool,
) -> ModelConfig:
    """kinds and experts: of each layer. turned: whether layers without experts have positions also
    where they see everything."""
    layers = []
    for plain, own in zip(_each_sliding(kinds, window, bias=bias), experts, strict=True):
        layer = msgspec.structs.replace(plain, feed_forward=FeedForwardSpec(experts=own))
        if own is None and turned:
            attention = msgspec.structs.replace(plain.attention, rope=0)
            layer = msgspec.structs.replace(layer, attention=attention)
        elif own is not None and own.shared_inner and own.scale != 1.0:
            half = RowFactors(
                module="mlp.shared_expert.down_proj", parts=((sizes["hidden_size"], own.scale),)
            )
            layer = msgspec.structs.replace(layer, weight_factors=(half,))
        layers.append(layer)
    return ModelConfig(
        architecture="cohere2_moe",
        **sizes,
        norm=norm,
        ropes=(rope,),
        layers=hub.shared(layers),
        logits_multiplier=logits,
    )


def _gguf_cohere2_moe(model: GGUFMetadata) -> ModelConfig:
    sizes, keys = model.sizes(), model.keys
    count = bounds.layers_without_drafts(keys)
    hub.only(keys, expert_gating_func=2)
    if keys.integer("expert_shared_count", 0):
        raise UnsupportedModel(f"{keys.where}: expert_shared_count above 0 is not served")
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=keys.integer("expert_feed_forward_length"),
        router="sigmoid",
        normalised=keys.flag("expert_weights_norm", False),
        scale=keys.positive("expert_weights_scale", 1.0),
    )
    dense, stated = keys.integer("leading_dense_block_count", 0), RMS_EPS in keys
    return _sparse_model(
        sizes | {"num_layers": count},
        NormSpec(eps=model.rms_eps())
        if stated
        else NormSpec(kind="layer", eps=model.layer_norm_eps()),
        model.rope(sizes["head_dim"]),
        model.layer_kinds()[:count],
        model.window(),
        [experts if number >= dense else None for number in range(count)],
        keys.number("logit_scale"),
        bias=False,
        turned=True,
    )


COHERE2_MOE = Family(
    "cohere2_moe",
    ("Cohere2MoeForCausalLM",),
    "North Mini Code (Cohere 2 MoE)",
    _hub2_moe,
    hub_names=TensorNames(
        {
            "mlp.gate": "mlp.router",
            **{
                f"mlp.shared_experts.{each}": f"mlp.shared_expert.{each}"
                for each in ("gate_proj", "up_proj", "down_proj")
            },
        },
        layers_for_drafts=True,
        pairs_adjacent=True,
    ),
    gguf="cohere2moe",
    read_gguf=_gguf_cohere2_moe,
    gguf_names=TensorNames(stacked=GGUF_NAMES.stacked, layers_for_drafts=True, pairs_adjacent=True),
)
