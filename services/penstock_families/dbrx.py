"""DBRX: layer norms without biases, queries, keys and values within bounds, and experts.

Files have the matrices of all experts one below the other, those that project down transposed, and
say in sections what other families' files say at the top.

Source: Databricks, "Introducing DBRX: a new state-of-the-art open LLM", 2024.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.rope_spec import RopeSpec

OWN_NAMES = {
    "d_model": ("hidden_size", 2048),
    "n_heads": ("num_attention_heads", 16),
    "n_layers": ("num_hidden_layers", 24),
    "max_seq_len": ("max_position_embeddings", 2048),
}
"""What config.json calls the sizes of other families, and transformers' defaults."""
HEADS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
EPS = 1e-5
"""What is added to a norm's variance: no file says it."""


def _hub(fields: Fields) -> ModelConfig:
    usual = {ours: fields.integer(key, most) for key, (ours, most) in OWN_NAMES.items()}
    attention, feed_forward = fields.section("attn_config"), fields.section("ffn_config")
    usual |= {
        "num_key_value_heads": attention.integer("kv_n_heads", 1),
        "vocab_size": fields.integer("vocab_size", 32_000),
    }
    fields.ignore("emb_pdrop", "resid_pdrop")  # of training
    if fields.flag("tie_word_embeddings", False):
        raise fields.wrong("tie_word_embeddings", "false")
    fields = fields.replaced(usual)
    sizes = hub.sizes(fields, inner=feed_forward.integer("ffn_hidden_size", 3584))
    rope = hub.rope(fields, sizes["head_dim"])
    if "rope_theta" in attention:  # as the makers' files say it
        rope = replace(rope, theta=attention.positive("rope_theta"))
    bound = attention.positive("clip_qkv") if "clip_qkv" in attention else None
    return _model(sizes, rope, bound, _experts(feed_forward, sizes["intermediate_size"]))


def _experts(section: Fields, inner: int) -> FeedForwardSpec:
    section = section.with_absent({"moe_num_experts": 4, "moe_top_k": 1})
    power = section.values.get("moe_normalize_expert_weights", 1.0)
    if power not in (None, 1):
        raise section.wrong("moe_normalize_expert_weights", "1, or null")
    key = "ffn_act_fn"
    named = section.values.get(key)
    if not isinstance(named, str):
        named = section.section(key).text("name", "silu")
    hub.activation(Fields({key: named}, section.where), "silu", key=key)
    return FeedForwardSpec(
        experts=ExpertsSpec(
            **bounds.expert_counts(section, "moe_num_experts", "moe_top_k"),
            inner=inner,
            normalised=power is not None,
        )
    )


def _model(
    sizes: dict[str, Any], rope: RopeSpec, bound: float | None, feed_forward: FeedForwardSpec
) -> ModelConfig:
    layer = LayerSpec(attention=AttentionSpec(qkv_bound=bound), feed_forward=feed_forward)
    return ModelConfig(
        architecture="dbrx",
        **sizes,
        norm=NormSpec(kind="layer", eps=EPS),
        ropes=(rope,),
        layers=(layer,),
    )


def _gguf(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    if (eps := model.layer_norm_eps()) != EPS:
        raise UnsupportedModel(f"{model.keys.where}: norms have the epsilon {eps}; {EPS} is served")
    experts = ExpertsSpec(**model.expert_counts(), inner=sizes["intermediate_size"])
    return _model(
        sizes, model.rope(sizes["head_dim"]), model.qkv_bound(), FeedForwardSpec(experts=experts)
    )


DBRX = Family(
    "dbrx",
    ("DbrxForCausalLM",),
    "DBRX",
    _hub,
    hub_names=TensorNames(
        {
            "wte": "embed_tokens",
            "norm_f": "norm",
            "norm_attn_norm.norm_1": "input_layernorm",
            "norm_attn_norm.norm_2": "post_attention_layernorm",
            "norm_attn_norm.attn.out_proj": "self_attn.o_proj",
            "ffn.router.layer": "mlp.router",
        },
        fused={"norm_attn_norm.attn.Wqkv": HEADS},
        rows_of_experts={
            "ffn.experts.mlp.w1": ("mlp.experts.*.gate_proj",),
            "ffn.experts.mlp.v1": ("mlp.experts.*.up_proj",),
            "ffn.experts.mlp.w2": ("mlp.experts.*.down_proj",),
        },
        rows_turned=frozenset({"ffn.experts.mlp.w2"}),
    ),
    gguf="dbrx",
    read_gguf=_gguf,
    gguf_names=TensorNames(
        {"attention_output_norm": "post_attention_layernorm"},
        fused={"self_attn.qkv_proj": HEADS},
        stacked=GGUF_NAMES.stacked,
    ),
)
