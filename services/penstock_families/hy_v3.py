"""Hunyuan V3 (Hy3): experts chosen by corrected sigmoid scores, plus a shared one, in all layers
but the first one; queries and keys normalised head by head.

Source: Tencent, "Hy3", 2026.
"""

from __future__ import annotations

from typing import Any

from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import rounded
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import OUTPUT, QUERY, GGUFSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec


def _read(source: Source) -> ModelConfig:
    """Which layers have experts is seen by their tensors in a GGUF file."""
    source.activation("silu")
    source.only(mlp_bias=False, route_norm=True, moe_router_use_sigmoid=True, qk_norm=True)
    source.ignore("enable_moe_fp32_combine")  # sums of experts are in float32
    source.ignore("num_nextn_predict_layers")  # for drafts only
    sizes, keys = source.sizes(head_dim=128), source.fields
    inner = source.integer("moe_intermediate_size", 1536, "expert_feed_forward_length")
    further: dict[str, Any] = {}
    if isinstance(source, GGUFSource):
        count = sizes["num_layers"] = bounds.layers_without_drafts(keys)
        tensors = source.model.tensors
        hub.only(keys, expert_gating_func=2)
        keys.ignore("leading_dense_block_count", "expert_shared_count")
        further = {
            "correction": source.model.has_in_any("exp_probs_b.bias", count),
            "normalised": keys.flag("expert_weights_norm", False),
            "scale": rounded(keys.positive("expert_weights_scale", 1.0)),
            "shared_inner": keys.integer("expert_shared_feed_forward_length", inner),
        }
        sparse = [f"blk.{number}.ffn_gate_inp.weight" in tensors for number in range(count)]
    else:
        further = {
            "correction": True,
            "scale": keys.positive("router_scaling_factor", 2.826),
            "shared_inner": inner * keys.integer("num_shared_experts", 1),
        }
        sparse = hub.sparse_behind(keys, sizes["num_layers"])
    counts = source.expert_counts("num_experts", "num_local_experts")
    experts = ExpertsSpec(**counts, inner=inner, router="sigmoid", **further)
    attention = AttentionSpec(
        norm="head", qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT)
    )
    layers = [
        LayerSpec(
            attention=attention, feed_forward=FeedForwardSpec(experts=experts if each else None)
        )
        for each in sparse
    ]
    return decoder(source, "hy_v3", sizes, layers, eps=1e-5, theta=11_158_840.0)


HY_V3 = Family(
    "hy_v3",
    ("HYV3ForCausalLM",),
    "Hunyuan V3 (Hy3)",
    of_hub(_read),
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
    read_gguf=of_gguf(_read),
    gguf_names=TensorNames(stacked=GGUF_NAMES.stacked, layers_for_drafts=True),
)
