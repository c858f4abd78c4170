"""Ling and Ring (Bailing): experts beside one that every token has, in all layers but the first
ones. Version 1 chooses them by softmax; version 2 by corrected sigmoid scores from the best groups,
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
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.source import GGUFSource, HubSource, decoder, dense_first
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
)

OF_TRAINING = ("embedding_dropout", "output_dropout", "router_dtype", "num_nextn_predict_layers")


def _hub1(fields: Fields) -> ModelConfig:
    experts = ExpertsSpec(**_common_experts(fields))
    return _model(fields, "bailing_moe", experts, "none", None)


def _hub2(fields: Fields) -> ModelConfig:
    experts = sigmoid_experts(fields)
    norm = "head" if fields.flag("use_qk_norm", True) else "none"
    return _model(fields, "bailing_moe_v2", experts, norm, 0.5)


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


def _model(
    fields: Fields, name: str, experts: ExpertsSpec, norm: Any, share: float | None
) -> ModelConfig:
    """norm: of queries and keys. share: the part of a head that rotates."""
    hub.activation(fields, "silu")
    hub.only(fields, norm_head=False, norm_softmax=False, use_rmsnorm=True)
    fields.ignore(*OF_TRAINING)
    sizes, bias = hub.sizes(fields), fields.flag("use_bias", False)
    attention = AttentionSpec(
        norm=norm, qkv_bias=fields.flag("use_qkv_bias", False), output_bias=bias
    )
    dense = fields.integer("first_k_dense_replace", 0)
    layers = dense_first(attention, experts, dense, sizes["num_layers"])
    return decoder(HubSource(fields), name, sizes, layers, share=share)


def _gguf1(model: GGUFMetadata) -> ModelConfig:
    return _gguf_model(model, "bailing_moe")


def _gguf2(model: GGUFMetadata) -> ModelConfig:
    return _gguf_model(model, "bailing_moe_v2")


def _gguf_model(model: GGUFMetadata, name: str) -> ModelConfig:
    keys, count = model.keys, bounds.layers_without_drafts(model.keys)
    keys.ignore("expert_shared_feed_forward_length")  # an expert's, as often as there are some
    dense = keys.integer("leading_dense_block_count", 0)
    attention = AttentionSpec(
        norm="head" if model.has("attn_q_norm.weight") else "none",
        qkv_bias=model.has("attn_q.bias", "attn_qkv.bias"),
        output_bias=model.has("attn_output.bias"),
    )
    experts = gguf_experts(model, f"blk.{dense}.exp_probs_b.bias")
    sizes = model.sizes() | {"num_layers": count}
    layers = dense_first(attention, experts, dense, count)
    return decoder(GGUFSource(model), name, sizes, layers)


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
    _hub1,
    hub_names=NAMES,
    gguf="bailingmoe",
    read_gguf=_gguf1,
    gguf_names=GGUF_EXPERTS,
)
BAILING_MOE_V2 = Family(
    "bailing_moe_v2",
    ("BailingMoeV2ForCausalLM",),
    "Ling 2, Ring 2",
    _hub2,
    hub_names=NAMES,
    gguf="bailingmoe2",
    read_gguf=_gguf2,
    gguf_names=TensorNames(
        fused={"self_attn.qkv_proj": QUERIES_KEYS_VALUES},
        stacked=GGUF_EXPERTS.stacked,
        layers_for_drafts=True,
    ),
)
