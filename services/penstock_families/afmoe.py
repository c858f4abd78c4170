"""Arcee's Trinity (AFMoE): experts chosen by corrected sigmoid scores, plus one shared expert, in
all layers but the first ones; three of four layers in a window, the others without positions; norms
before and after each half; attention's output gated number by number.

Source: Arcee, "Trinity", 2025; what it computes, as transformers' class and llama.cpp have it.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import rounded
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import GGUFSource, HubSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec


def _read(source: Source) -> ModelConfig:
    """llama.cpp's reader of GGUF files knows one pattern of windows, and scales all embeddings."""
    source.activation("silu")
    source.only(attention_bias=False, route_norm=True, score_func="sigmoid")
    source.only(n_group=1, topk_group=1, num_expert_groups=1, num_limited_groups=1)
    source.ignore("use_grouped_mm", "load_balance_coeff")  # of the computation, and of training
    sizes, keys = source.sizes(head_dim=128), source.fields
    count = sizes["num_layers"]
    inner = source.integer("moe_intermediate_size", 1408, "expert_feed_forward_length")
    kinds = hub.every_nth_full(source.integer("global_attn_every_n_layers", 4), count)
    if isinstance(source, GGUFSource):
        hub.only(keys, expert_weights_norm=True, expert_gating_func=2)
        counts, window = source.expert_counts(), hub.window(keys, "attention.sliding_window")
        scale = rounded(keys.positive("expert_weights_scale", 1.0))
    else:
        completed = HubSource(keys.completed(num_experts=64, num_experts_per_tok=6))
        counts = completed.expert_counts("num_experts", "num_local_experts")
        window = hub.window(keys.completed(sliding_window=1024))
        kinds, scale = hub.layer_kinds(keys, count, kinds), keys.positive("route_scale", 1.0)
    shared = source.integer("num_shared_experts", 2, "expert_shared_count", 0)
    experts = ExpertsSpec(
        **counts,
        inner=inner,
        router="sigmoid",
        correction=True,
        scale=scale,
        shared_inner=inner * shared,
    )
    dense = source.integer("num_dense_layers", 1, "leading_dense_block_count", 0)
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                window=window if kind == hub.SLIDING else None,
                rope=0 if kind == hub.SLIDING else None,
                norm="head",
                output_gate=True,
                gate_apart=True,
            ),
            feed_forward=FeedForwardSpec(experts=experts if number >= dense else None),
            order="sandwich",
        )
        for number, kind in enumerate(kinds)
    ]
    scaled = source.flag("mup_enabled", False, without=True)
    multiplier = sizes["hidden_size"] ** 0.5 if scaled else 1.0
    return decoder(source, "afmoe", sizes, layers, eps=1e-5, embedding_multiplier=multiplier)


GATE = "self_attn.output_gate_proj"
AFMOE = Family(
    "afmoe",
    ("AfmoeForCausalLM",),
    "Trinity (AFMoE)",
    of_hub(_read),
    hub_names=TensorNames(
        {
            "self_attn.gate_proj": GATE,
            "post_attention_layernorm": "attention_output_norm",
            "pre_mlp_layernorm": "post_attention_layernorm",
            "post_mlp_layernorm": "feed_forward_output_norm",
            "mlp.router.gate": "mlp.router",
            "mlp.expert_bias": "mlp.router.correction",
            **{
                f"mlp.shared_experts.{each}": f"mlp.shared_expert.{each}"
                for each in ("gate_proj", "up_proj", "down_proj")
            },
        }
    ),
    gguf="afmoe",
    read_gguf=of_gguf(_read),
    gguf_names=TensorNames({"recurrent.in_proj_z": GATE}, stacked=GGUF_NAMES.stacked),
)
