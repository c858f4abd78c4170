"""Hunyuan V3 (Hy3): experts chosen by corrected sigmoid scores, beside one that every token has, in
all layers but the first one; queries and keys normalised head by head.

Source: Tencent, "Hy3", 2026.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LayerSpec,
    NormSpec,
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
    return ModelConfig(
        architecture="hy_v3",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=11_158_840.0),),
        layers=hub.shared(
            LayerSpec(
                attention=attention,
                feed_forward=FeedForwardSpec(experts=experts if sparse else None),
            )
            for sparse in hub.sparse_behind(fields, sizes["num_layers"])
        ),
    )


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
)
