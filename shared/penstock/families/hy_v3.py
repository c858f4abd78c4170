"""Hunyuan V3 (Hy3): experts chosen by corrected sigmoid scores, beside one that every token has, in
all layers but the first one; queries and keys normalised head by head.

Source: Tencent, "Hy3", 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.families import bounds
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
    attention: AttentionSpec,
    experts: ExpertsSpec,
    sparse: Sequence[bool],
    rope: RopeSpec,
    eps: float,
) -> ModelConfig:
    """sparse: whether each layer has experts."""
    return ModelConfig(
        architecture="hy_v3",
        **sizes,
        norm=NormSpec(eps=eps),
        ropes=(rope,),
        layers=hub.shared(
            LayerSpec(
                attention=attention, feed_forward=FeedForwardSpec(experts=experts if each else None)
            )
            for each in sparse
        ),
    )


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    hub.only(fields, mlp_bias=False, route_norm=True, moe_router_use_sigmoid=True, qk_norm=True)
    fields.ignore("enable_moe_fp32_combine")  # sums of experts are in float32
    fields.ignore("num_nextn_predict_layers")  # for drafts only
    sizes, inner = (
        hub.sizes(fields, default_head_dim=128),
        fields.integer("moe_intermediate_size", 1536),
    )
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "num_experts", "num_local_experts"),
        inner=inner,
        router="sigmoid",
        correction=True,
        scale=fields.positive("router_scaling_factor", 2.826),
        shared_inner=inner * fields.integer("num_shared_experts", 1),
    )
    bias = fields.flag("attention_bias", False)
    attention = AttentionSpec(norm="head", qkv_bias=bias, output_bias=bias)
    return _model(
        sizes,
        attention,
        experts,
        hub.sparse_behind(fields, sizes["num_layers"]),
        hub.rope(fields, sizes["head_dim"], theta=11_158_840.0),
        fields.number("rms_norm_eps", 1e-5),
    )


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """Which layers have experts is seen by their tensors."""
    keys, count = model.keys, bounds.layers_without_drafts(model.keys)
    hub.only(keys, expert_gating_func=2)
    keys.ignore("leading_dense_block_count", "expert_shared_count")
    inner = keys.integer("expert_feed_forward_length")
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=inner,
        router="sigmoid",
        correction=model.has_in_any("exp_probs_b.bias", count),
        normalised=keys.flag("expert_weights_norm", False),
        scale=rounded(keys.positive("expert_weights_scale", 1.0)),
        shared_inner=keys.integer("expert_shared_feed_forward_length", inner),
    )
    sizes = model.sizes() | {"num_layers": count}
    attention = AttentionSpec(
        norm="head", qkv_bias=model.has("attn_q.bias"), output_bias=model.has("attn_output.bias")
    )
    sparse = [f"blk.{number}.ffn_gate_inp.weight" in model.tensors for number in range(count)]
    rope = model.rope(sizes["head_dim"])
    return _model(sizes, attention, experts, sparse, rope, model.rms_eps())


HY_V3 = Family(
    "hy_v3",
    ("HYV3ForCausalLM",),
    "Hunyuan V3 (Hy3)",
    _hub,
    hub_names=TensorNames(
        {
            "mlp.router.gate": "mlp.router",
            "mlp.expert_bias": "mlp.router.correction",
            **{
                f"mlp.shared_mlp.{each}": f"mlp.shared_expert.{each}"
                for each in ("gate_proj", "up_proj", "down_proj")
            },
        },
        layers_for_drafts=True,
    ),
    gguf="hy_v3",
    read_gguf=_gguf,
    gguf_names=TensorNames(stacked=GGUF_NAMES.stacked, layers_for_drafts=True),
)
