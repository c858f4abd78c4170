"""EXAONE 3: Llama under other names. EXAONE 4: norms after attention and feed-forward only, queries
and keys normalised head by head; in the larger release three of four layers in a window, and the
fourth without positions. K-EXAONE: the same with norms before both, and experts chosen by corrected
sigmoid scores.

Sources: LG AI Research, "EXAONE 3.5", 2024; "EXAONE 4.0", 2025; "K-EXAONE technical report", 2026.
"""

from __future__ import annotations

from typing import Literal

from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.deepseek import GGUF_NAMES as GGUF_EXPERTS
from penstock.families.deepseek import NAMES as EXPERT_NAMES
from penstock.families.deepseek import gguf_experts
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.source import GGUFSource, HubSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock_families.olmo2 import NAMES


def _exaone3(source: Source) -> ModelConfig:
    source.activation("silu", key="activation_function")
    if isinstance(source, HubSource):
        count = source.integer("num_layers")
        source = HubSource(source.fields.completed(num_hidden_layers=count))
    norm = NormSpec(eps=source.eps(1e-5, "layer_norm_epsilon"))
    return decoder(source, "exaone", source.sizes(), [LayerSpec()], norm=norm)


EXAONE3 = Family(
    "exaone",
    ("ExaoneForCausalLM",),
    "EXAONE 3, EXAONE 3.5, EXAONE Deep",
    of_hub(_exaone3),
    hub_names=TensorNames(
        {
            "wte": "embed_tokens",
            "ln_f": "norm",
            "ln_1": "input_layernorm",
            "ln_2": "post_attention_layernorm",
            **{f"attn.attention.{each}_proj": f"self_attn.{each}_proj" for each in "qkv"},
            "attn.attention.out_proj": "self_attn.o_proj",
            "mlp.c_fc_0": "mlp.gate_proj",
            "mlp.c_fc_1": "mlp.up_proj",
            "mlp.c_proj": "mlp.down_proj",
        }
    ),
    gguf="exaone",
    read_gguf=of_gguf(_exaone3),
)


def _usual_kinds(window: int | None, count: int) -> list[str]:
    return [hub.FULL] * count if window is None else hub.every_nth_full(4, count)


def _layers(
    kinds: list[str],
    window: int | None,
    experts: list[ExpertsSpec | None],
    order: Literal["pre", "post"] = "post",
) -> tuple[LayerSpec, ...]:
    """Returns the layers: where some slide, the others have no positions. experts: of each
    layer."""
    layers = []
    for kind, each in zip(kinds, experts, strict=True):
        slides = kind == hub.SLIDING
        attention = AttentionSpec(
            window=window if slides else None,
            rope=0 if slides or window is None else None,
            norm="head",
        )
        feed_forward = FeedForwardSpec(experts=each)
        layers.append(LayerSpec(attention=attention, feed_forward=feed_forward, order=order))
    return hub.shared(layers)


def _exaone4(source: Source) -> ModelConfig:
    source.activation("silu")
    sizes, window, keys = source.sizes(), source.window(), source.fields
    source.ignore("sliding_window_pattern")  # layer_types says it too
    count = sizes["num_layers"]
    kinds = _usual_kinds(window, count)
    if isinstance(source, HubSource):
        kinds = hub.layer_kinds(keys, count, kinds)
    elif window is not None and "attention.sliding_window_pattern" in keys:
        kinds = source.model.layer_kinds()
    layers = _layers(kinds, window, [None] * count)
    return decoder(source, "exaone4", sizes, layers, eps=1e-5)


EXAONE4 = Family(
    "exaone4",
    ("Exaone4ForCausalLM",),
    "EXAONE 4",
    of_hub(_exaone4),
    hub_names=NAMES,
    gguf="exaone4",
    read_gguf=of_gguf(_exaone4),
)


def _hub_moe(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    hub.only(fields, scoring_func="sigmoid", topk_method="noaux_tc")
    older, listed = "first_last_k_dense_replace", "is_moe_layer"
    if older in fields:
        fields = fields.completed(first_k_dense_replace=fields.integer(older))
    if listed in fields:
        kinds = ["sparse" if each else "dense" for each in fields.listed(listed, bool)]
        fields = fields.completed(mlp_layer_types=kinds)
    # The first says the same as layer_types, the second is for drafts only.
    fields.ignore("sliding_window_pattern", "num_nextn_predict_layers")
    sizes, inner = hub.sizes(fields), fields.integer("moe_intermediate_size", 1024)
    count, window = sizes["num_layers"], hub.window(fields)
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "num_experts"),
        inner=inner,
        router="sigmoid",
        correction=True,
        normalised=fields.flag("norm_topk_prob", True),
        scale=fields.positive("routed_scaling_factor", 2.5),
        shared_inner=inner * fields.integer("num_shared_experts", 1),
        groups=fields.integer("n_group", 1),
        active_groups=fields.integer("topk_group", 1),
    )
    bounds.check_expert_groups(fields, experts)
    sparse = hub.sparse_behind(fields, count)
    kinds = hub.layer_kinds(fields, count, hub.every_nth_full(4, count))
    layers = _layers(kinds, window, [experts if each else None for each in sparse], "pre")
    return decoder(HubSource(fields), "exaone_moe", sizes, layers, eps=1e-5)


def _gguf_moe(model: GGUFMetadata) -> ModelConfig:
    keys, dense = model.keys, model.keys.integer("leading_dense_block_count", 0)
    count = bounds.layers_without_drafts(keys)
    keys.ignore("expert_shared_feed_forward_length")  # an expert's, as often as there are some
    experts = gguf_experts(model, f"blk.{dense}.exp_probs_b.bias")
    kinds, window = hub.every_nth_full(4, count), model.window()
    if window is not None and "attention.sliding_window_pattern" in keys:
        kinds = model.layer_kinds()[:count]
    sizes = model.sizes() | {"num_layers": count}
    own = [None if each < dense else experts for each in range(count)]
    return decoder(GGUFSource(model), "exaone_moe", sizes, _layers(kinds, window, own, "pre"))


EXAONE_MOE = Family(
    "exaone_moe",
    ("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    "K-EXAONE",
    _hub_moe,
    hub_names=TensorNames(
        {**EXPERT_NAMES.modules, "mlp.e_score_correction_bias": "mlp.router.correction"}
    ),
    gguf="exaone-moe",
    read_gguf=_gguf_moe,
    gguf_names=TensorNames(stacked=GGUF_EXPERTS.stacked, layers_for_drafts=True),
)
