"""Arcee's Trinity (AFMoE): experts chosen by corrected sigmoid scores, beside one that every token
has, in all layers but the first ones; three of four layers in a window, the others without
positions; norms before and behind each half; attention's output gated number by number.

Source: Arcee, "Trinity", 2025; what it computes, as transformers' class and llama.cpp have it.
"""

from __future__ import annotations

from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata, rounded
from penstock.families.qwen3 import GGUF_NAMES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LayerSpec,
    NormSpec,
    RopeSpec,
)


def _model(
    sizes: dict[str, Any],
    windows: list[int | None],
    experts: ExpertsSpec,
    rope: RopeSpec,
    *,
    eps: float,
    dense: int,
    scaled: bool,
) -> ModelConfig:
    """windows: each layer's; None: it sees everything, and doesn't rotate. dense: how many layers,
    the first ones, have no experts. scaled: whether embeddings are multiplied by the root of their
    size."""
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                window=window,
                rope=None if window is None else 0,
                norm="head",
                output_gate=True,
                gate_apart=True,
            ),
            feed_forward=FeedForwardSpec(experts=experts if number >= dense else None),
            order="sandwich",
        )
        for number, window in enumerate(windows)
    ]
    return ModelConfig(
        architecture="afmoe",
        **sizes,
        norm=NormSpec(eps=eps),
        ropes=(rope,),
        layers=hub.shared(layers),
        embedding_multiplier=sizes["hidden_size"] ** 0.5 if scaled else 1.0,
    )


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    hub.only(fields, attention_bias=False, route_norm=True, score_func="sigmoid")
    hub.only(fields, n_group=1, topk_group=1, num_expert_groups=1, num_limited_groups=1)
    fields.ignore("use_grouped_mm", "load_balance_coeff")  # of the computation, and of training
    sizes = hub.sizes(fields, default_head_dim=128)
    count, inner = sizes["num_layers"], fields.integer("moe_intermediate_size", 1408)
    counted = fields.completed(num_experts=64, num_experts_per_tok=6)
    experts = ExpertsSpec(
        **hub.expert_counts(counted, "num_experts", "num_local_experts"),
        inner=inner,
        router="sigmoid",
        correction=True,
        scale=fields.positive("route_scale", 1.0),
        shared_inner=inner * fields.integer("num_shared_experts", 2),
    )
    usual = hub.every_nth_full(fields.integer("global_attn_every_n_layers", 4), count)
    window = hub.window(fields.completed(sliding_window=1024))
    kinds = hub.layer_kinds(fields, count, usual)
    return _model(
        sizes,
        [window if kind == hub.SLIDING else None for kind in kinds],
        experts,
        hub.rope(fields, sizes["head_dim"]),
        eps=fields.number("rms_norm_eps", 1e-5),
        dense=fields.integer("num_dense_layers", 1),
        scaled=fields.flag("mup_enabled", False),
    )


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """llama.cpp's reader knows one pattern of windows, and scales all embeddings."""
    sizes, keys = model.sizes(), model.keys
    hub.only(keys, expert_weights_norm=True, expert_gating_func=2)
    inner = keys.integer("expert_feed_forward_length")
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=inner,
        router="sigmoid",
        correction=True,
        scale=rounded(keys.positive("expert_weights_scale", 1.0)),
        shared_inner=inner * keys.integer("expert_shared_count", 0),
    )
    window = hub.window(keys, "attention.sliding_window")
    kinds = hub.every_nth_full(4, sizes["num_layers"])
    return _model(
        sizes,
        [window if kind == hub.SLIDING else None for kind in kinds],
        experts,
        model.rope(sizes["head_dim"]),
        eps=model.rms_eps(),
        dense=keys.integer("leading_dense_block_count", 0),
        scaled=True,
    )


GATE = "self_attn.output_gate_proj"
AFMOE = Family(
    "afmoe",
    ("AfmoeForCausalLM",),
    "Trinity (AFMoE)",
    _hub,
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
    read_gguf=_gguf,
    gguf_names=TensorNames({"recurrent.in_proj_z": GATE}, stacked=GGUF_NAMES.stacked),
)
