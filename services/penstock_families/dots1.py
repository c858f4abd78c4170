"""dots.llm1: experts chosen by corrected sigmoid scores, plus shared experts, in all layers but the
first ones; queries and keys normalised head by head. GGUF files of DeepSeek-OCR's decoder, which
has softmax scores and no such norms, are read here, too.

Source: rednote-hilab, "dots.llm1 technical report", 2025.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.deepseek import GGUF_NAMES as GGUF_EXPERTS
from penstock.families.deepseek import NAMES, gguf_experts
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.source import GGUFSource, HubSource, decoder, dense_first
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    hub.only(fields, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    sizes, inner = hub.sizes(fields), fields.integer("moe_intermediate_size", 1408)
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "n_routed_experts", "num_local_experts"),
        inner=inner,
        router="sigmoid",
        correction=True,
        normalised=fields.flag("norm_topk_prob", False),
        scale=fields.positive("routed_scaling_factor", 1.0),
        shared_inner=inner * fields.integer("n_shared_experts", 0),
        groups=fields.integer("n_group", 1),
        active_groups=fields.integer("topk_group", 1),
    )
    bounds.check_expert_groups(fields, experts)
    bias, count = fields.flag("attention_bias", False), sizes["num_layers"]
    dense = fields.integer("first_k_dense_replace", 0)
    layers = [
        LayerSpec(
            attention=AttentionSpec(window=window, norm="head", qkv_bias=bias, output_bias=bias),
            feed_forward=FeedForwardSpec(experts=None if number < dense else experts),
        )
        for number, window in enumerate(_windows(fields, count))
    ]
    return decoder(HubSource(fields), "dots1", sizes, layers)


def _windows(fields: Fields, count: int) -> list[int | None]:
    """Each layer's window, where there is one for the layers after `max_window_layers`."""
    first = fields.integer("max_window_layers", 62)
    fields.ignore("sliding_window", "layer_types", "use_sliding_window")
    if "sliding_window" not in fields:
        return [None] * count
    windowed = [hub.SLIDING if number >= first else hub.FULL for number in range(count)]
    kinds = hub.layer_kinds(fields, count, windowed)
    return [hub.window(fields) if kind == hub.SLIDING else None for kind in kinds]


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """DeepSeek-OCR's files say that nothing of a head rotates, as of latents; all of it does."""
    sizes, keys = model.sizes(), model.keys
    if not keys.integer("rope.dimension_count", 0):
        keys = keys.replaced({"rope.dimension_count": sizes["head_dim"]})
        model = replace(model, keys=keys)
    dense = keys.integer("leading_dense_block_count", 0)
    experts = gguf_experts(model, f"blk.{dense}.exp_probs_b.bias")
    attention = AttentionSpec(norm="head" if model.has("attn_q_norm.weight") else "none")
    layers = dense_first(attention, experts, dense, sizes["num_layers"])
    return decoder(GGUFSource(model), "dots1", sizes, layers)


DOTS1 = Family(
    "dots1",
    ("Dots1ForCausalLM",),
    "dots.llm1",
    _hub,
    hub_names=TensorNames(NAMES.modules),
    gguf="dots1",
    gguf_also=("deepseek2-ocr",),
    read_gguf=_gguf,
    gguf_names=TensorNames(stacked=GGUF_EXPERTS.stacked),
)
