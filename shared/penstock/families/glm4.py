"""GLM-4, dense: heads that rotate in part, with adjacent pairs; the releases of April 2025 have
norms after attention and feed-forward, too. GLM-4.5, 4.6 and Solar Open: experts chosen by
corrected sigmoid scores, plus a shared one.

Sources: GLM team, "ChatGLM", 2024; the model cards of GLM-4-0414; "GLM-4.5", 2025.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.deepseek import GGUF_NAMES as GGUF_EXPERTS
from penstock.families.deepseek import gguf_experts
from penstock.families.family import Family
from penstock.families.llama_relatives import FUSED, GGUF_FUSED
from penstock.families.source import (
    QUERY,
    GGUFSource,
    HubSource,
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
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec

NAMES = TensorNames(
    {
        "post_self_attn_layernorm": "attention_output_norm",
        "post_mlp_layernorm": "feed_forward_output_norm",
    },
    {"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")},
    pairs_adjacent=True,
)


def _model(source: Source, name: str, order: Literal["pre", "sandwich"]) -> ModelConfig:
    source.activation("silu")
    sizes, rope = source.sizes(head_dim=128), None
    if isinstance(source, GGUFSource):
        sizes["num_layers"] = bounds.layers_without_drafts(source.fields)
        rope = source.model.with_sections(source.rope(sizes["head_dim"]))
    bias = source.bias(QUERY, default=True) or source.bias("attn_qkv", default=True)
    layer = LayerSpec(attention=AttentionSpec(qkv_bias=bias), order=order)
    return decoder(source, name, sizes, [layer], eps=1.5625e-07, share=0.5, rope=rope)


def _glm(source: Source) -> ModelConfig:
    return _model(source, "glm", "pre")


def _glm4(source: Source) -> ModelConfig:
    return _model(source, "glm4", "sandwich")


GGUF_NAMES = TensorNames(fused=GGUF_FUSED, pairs_adjacent=True)


GLM = Family(
    "glm",
    ("GlmForCausalLM",),
    "GLM-4",
    of_hub(_glm),
    hub_names=NAMES,
    gguf="chatglm",
    read_gguf=of_gguf(_glm),
    gguf_names=GGUF_NAMES,
)


# ChatGLM 2 and 3, and GLM-4-9B as its makers' own code has it: GLM-4 under other names.


def _hub_chatglm(fields: Fields) -> ModelConfig:
    hub.only(
        fields,
        add_bias_linear=False,
        apply_residual_connection_post_layernorm=False,
        original_rope=True,
        post_layer_norm=True,
        rmsnorm=True,
    )
    # What scales scores before they are masked, and what is summed in float32.
    fields.ignore("apply_query_key_layer_scaling", "attention_softmax_in_fp32")
    fields.ignore("fp32_residual_connection", "bias_dropout_fusion", "kv_channels")
    heads = fields.integer("num_attention_heads")
    groups = fields.integer("multi_query_group_num", 1)
    sizes = hub.sizes(
        fields.completed(
            num_hidden_layers=fields.integer("num_layers"),
            num_key_value_heads=groups if fields.flag("multi_query_attention", False) else heads,
            head_dim=fields.integer("kv_channels"),
            max_position_embeddings=fields.integer("seq_length"),
            vocab_size=fields.integer("padded_vocab_size"),
        ),
        inner=fields.integer("ffn_hidden_size"),
    )
    theta = 10_000.0 * fields.number("rope_ratio", 1.0)
    attention = AttentionSpec(qkv_bias=fields.flag("add_qkv_bias", False))
    source, layer = HubSource(fields), LayerSpec(attention=attention)
    norm = NormSpec(eps=source.eps(1e-5, "layernorm_epsilon"))
    return decoder(source, "chatglm", sizes, [layer], norm=norm, theta=theta, share=0.5)


CHATGLM = Family(
    "chatglm",
    ("ChatGLMForConditionalGeneration", "ChatGLMModel"),
    "ChatGLM 2 and 3, GLM-4-9B",
    _hub_chatglm,
    hub_names=TensorNames(
        {
            "embedding.word_embeddings": "embed_tokens",
            "final_layernorm": "norm",
            "output_layer": "lm_head",
            "self_attention.dense": "self_attn.o_proj",
            "mlp.dense_4h_to_h": "mlp.down_proj",
        },
        fused={
            "self_attention.query_key_value": FUSED["self_attn.qkv_proj"],
            "mlp.dense_h_to_4h": FUSED["mlp.gate_up_proj"],
        },
        pairs_adjacent=True,
    ),
)
GLM4 = Family(
    "glm4",
    ("Glm4ForCausalLM",),
    "GLM-4-0414",
    of_hub(_glm4),
    hub_names=replace(NAMES, layers_for_drafts=True),  # GLM-OCR has one
    gguf="glm4",
    read_gguf=of_gguf(_glm4),
    gguf_names=replace(GGUF_NAMES, pairs_adjacent="without sections", layers_for_drafts=True),
)


MOE_NAMES = TensorNames(
    {
        "mlp.gate": "mlp.router",
        "mlp.gate.e_score_correction_bias": "mlp.router.correction",
        "mlp.shared_experts.gate_proj": "mlp.shared_expert.gate_proj",
        "mlp.shared_experts.up_proj": "mlp.shared_expert.up_proj",
        "mlp.shared_experts.down_proj": "mlp.shared_expert.down_proj",
    },
    layers_for_drafts=True,
)


def _moe(source: Source) -> ModelConfig:
    source.activation("silu")
    sizes, rope = source.sizes(), None
    source.ignore("num_nextn_predict_layers", "num_mtp_layers")  # for drafts only
    dense = source.integer("first_k_dense_replace", 1, "leading_dense_block_count", without=0)
    if isinstance(source, GGUFSource):
        sizes["num_layers"] = bounds.layers_without_drafts(source.fields)
        experts = gguf_experts(source.model, f"blk.{dense}.exp_probs_b.bias")
        normed = source.model.has("attn_q_norm.weight")
        rope = source.model.with_sections(source.rope(sizes["head_dim"]))
    else:
        experts = _experts(source.fields, source.integer("moe_intermediate_size"))
        normed = source.flag("use_qk_norm", False)
    attention = AttentionSpec(qkv_bias=source.bias(QUERY), norm="head" if normed else "none")
    layers = dense_first(attention, experts, dense, sizes["num_layers"])
    return decoder(source, "glm4_moe", sizes, layers, eps=1e-5, share=0.5, rope=rope)


def _experts(fields: Fields, inner: int) -> ExpertsSpec:
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "n_routed_experts", "num_local_experts"),
        inner=inner,
        router="sigmoid",
        correction=True,
        normalised=fields.flag("norm_topk_prob", True),
        scale=fields.positive("routed_scaling_factor", 1.0),
        shared_inner=inner * fields.integer("n_shared_experts", 1),
        groups=fields.integer("n_group", 1),
        active_groups=fields.integer("topk_group", 1),
    )
    bounds.check_expert_groups(fields, experts)
    return experts


def _hub_solar(fields: Fields) -> ModelConfig:
    """Solar Open is GLM-4.5 with experts in all layers, and heads that rotate as a whole."""
    hub.activation(fields, "silu")
    # There are no layers without experts, whatever some files say of them.
    fields.ignore("intermediate_size", "first_k_dense_replace", "use_qk_norm")
    inner = fields.integer("moe_intermediate_size", 1280)
    experts = _experts(fields, inner)
    sizes = hub.sizes(fields, default_head_dim=128, inner=inner)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=fields.flag("attention_bias", False)),
        feed_forward=FeedForwardSpec(experts=experts),
    )
    source = HubSource(fields)
    return decoder(source, "solar_open", sizes, [layer], eps=1e-5, theta=1_000_000.0, share=1.0)


GLM4_MOE = Family(
    "glm4_moe",
    ("Glm4MoeForCausalLM",),
    "GLM-4.5",
    of_hub(_moe),
    hub_names=MOE_NAMES,
    gguf="glm4moe",
    read_gguf=of_gguf(_moe),
    gguf_names=TensorNames(
        {"attention_output_norm": "post_attention_layernorm"},
        stacked=GGUF_EXPERTS.stacked,
        layers_for_drafts=True,
    ),
)
SOLAR_OPEN = Family(
    "solar_open", ("SolarOpenForCausalLM",), "Solar Open", _hub_solar, hub_names=MOE_NAMES
)
