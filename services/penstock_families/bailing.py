"""Ling and Ring (Bailing): routed experts and a shared one, in all layers but the first ones.
Version 1 chooses them by softmax; version 2 by corrected sigmoid scores from the best groups,
normalises queries and keys head by head, and rotates half of each head.

Source: Ling team, "Every FLOP counts: scaling a 300B mixture-of-experts LING LLM without premium
GPUs", 2025; "Every activation boosted: scaling general reasoner to 1 trillion open language
foundation", 2025.
"""

from __future__ import annotations

from typing import Any

from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.deepseek import GGUF_NAMES as GGUF_EXPERTS
from penstock.families.deepseek import gguf_experts
from penstock.families.family import Family
from penstock.families.source import (
    OUTPUT,
    QUERY,
    GGUFSource,
    Source,
    decoder,
    dense_first,
    of_gguf,
    of_hub,
)
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec

OF_TRAINING = ("embedding_dropout", "output_dropout", "router_dtype", "num_nextn_predict_layers")


def _ling(source: Source) -> ModelConfig:
    return _model(source, "bailing_moe")


def _ling2(source: Source) -> ModelConfig:
    return _model(source, "bailing_moe_v2")


def sigmoid_experts(fields: Fields) -> ExpertsSpec:
    """Experts of versions 2 and 3. Raises UnsupportedModel."""
    hub.only(fields, score_function="sigmoid")
    experts = ExpertsSpec(
        **_common_experts(fields),
        router="sigmoid",
        correction=fields.flag("moe_router_enable_expert_bias", True),
        scale=fields.positive("routed_scaling_factor", 2.5),
        groups=fields.integer("n_group", 8),
        active_groups=fields.integer("topk_group", 4),
    )
    bounds.check_expert_groups(fields, experts)
    return experts


def _common_experts(fields: Fields) -> dict[str, Any]:
    inner, shared = fields.integer("moe_intermediate_size"), fields.integer("num_shared_experts", 0)
    return {
        **hub.expert_counts(fields, "num_experts"),
        "inner": inner,
        "normalised": fields.flag("norm_topk_prob", True),
        "shared_inner": shared * fields.integer("moe_shared_expert_intermediate_size", inner),
    }


def _model(source: Source, name: str) -> ModelConfig:
    source.activation("silu")
    source.only(norm_head=False, norm_softmax=False, use_rmsnorm=True)
    source.ignore(*OF_TRAINING)
    sizes, keys, second = source.sizes(), source.fields, name == "bailing_moe_v2"
    dense = source.integer("first_k_dense_replace", 0, "leading_dense_block_count", 0)
    if isinstance(source, GGUFSource):
        sizes["num_layers"] = bounds.layers_without_drafts(keys)
        keys.ignore("expert_shared_feed_forward_length")  # an expert's, as often as there are some
        normed = source.model.has("attn_q_norm.weight")
        experts = gguf_experts(source.model, f"blk.{dense}.exp_probs_b.bias")
    elif second:
        normed, experts = keys.flag("use_qk_norm", True), sigmoid_experts(keys)
    else:
        normed, experts = False, ExpertsSpec(**_common_experts(keys))
    queries, fused = (source.bias(each, "use_qkv_bias") for each in (QUERY, "attn_qkv"))
    attention = AttentionSpec(
        norm="head" if normed else "none",
        qkv_bias=queries or fused,
        output_bias=source.bias(OUTPUT, "use_bias"),
    )
    layers = dense_first(attention, experts, dense, sizes["num_layers"])
    return decoder(source, name, sizes, layers, share=0.5 if second else None)


QUERIES_KEYS_VALUES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
NAMES = TensorNames(
    {
        "word_embeddings": "embed_tokens",
        "attention.dense": "self_attn.o_proj",
        "attention.query_layernorm": "self_attn.q_norm",
        "attention.key_layernorm": "self_attn.k_norm",
        "mlp.gate": "mlp.router",
        "mlp.gate.expert_bias": "mlp.router.correction",
        **{
            f"mlp.shared_experts.{each}": f"mlp.shared_expert.{each}"
            for each in ("gate_proj", "up_proj", "down_proj")
        },
    },
    fused={"attention.query_key_value": QUERIES_KEYS_VALUES},
    layers_for_drafts=True,
)

BAILING_MOE = Family(
    "bailing_moe",
    ("BailingMoeForCausalLM",),
    "Ling, Ring",
    of_hub(_ling),
    hub_names=NAMES,
    gguf="bailingmoe",
    read_gguf=of_gguf(_ling),
    gguf_names=GGUF_EXPERTS,
)
BAILING_MOE_V2 = Family(
    "bailing_moe_v2",
    ("BailingMoeV2ForCausalLM",),
    "Ling 2, Ring 2",
    of_hub(_ling2),
    hub_names=NAMES,
    gguf="bailingmoe2",
    read_gguf=of_gguf(_ling2),
    gguf_names=TensorNames(
        fused={"self_attn.qkv_proj": QUERIES_KEYS_VALUES},
        stacked=GGUF_EXPERTS.stacked,
        layers_for_drafts=True,
    ),
)
