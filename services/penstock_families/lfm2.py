"""LFM2, dense and with a mixture of experts: short convolutions, and a few layers that attend.

Source: Liquid AI, "LFM2 technical report", 2025.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.qwen3 import GGUF_NAMES as GGUF_EXPERTS
from penstock.families.source import GGUFSource, HubSource, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.recurrent_spec import ShortConvSpec

OF_TRAINING = (
    "block_mlp_init_scale",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_use_xavier_init",
)
EPS, THETA = 1e-5, 1_000_000.0


def _hub_dense(fields: Fields) -> ModelConfig:
    fields = _completed(fields)
    sizes = hub.sizes(fields, tied=True)
    sizes["intermediate_size"] = _adjusted(fields, sizes["intermediate_size"])
    feed_forwards = [FeedForwardSpec()] * sizes["num_layers"]
    return _model(fields, "lfm2", sizes, feed_forwards)


def _hub_moe(fields: Fields) -> ModelConfig:
    fields = _completed(fields)
    sizes, dense = hub.sizes(fields, tied=True), fields.integer("num_dense_layers", 2)
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "num_experts"),
        inner=fields.integer("moe_intermediate_size"),
        router="sigmoid",
        normalised=fields.flag("norm_topk_prob", True),
        sum_floor=1e-6,
        correction=fields.flag("use_expert_bias", True),
        scale=fields.positive("routed_scaling_factor", 1.0),
    )
    feed_forwards = [
        FeedForwardSpec(experts=None if number < dense else experts)
        for number in range(sizes["num_layers"])
    ]
    return _model(fields, "lfm2_moe", sizes, feed_forwards)


def _completed(fields: Fields) -> Fields:
    """Older files call some things in another way, or say them twice."""
    fields.ignore(*OF_TRAINING)
    older = {"tie_word_embeddings": "tie_embedding", "intermediate_size": "block_ff_dim"}
    given = {key: fields.values[old] for key, old in older.items() if old in fields}
    return fields.completed(**given)


def _model(
    fields: Fields, name: str, sizes: dict[str, Any], feed_forwards: list[FeedForwardSpec]
) -> ModelConfig:
    hidden, heads, count = sizes["hidden_size"], sizes["num_heads"], sizes["num_layers"]
    eps = fields.number("norm_eps", EPS)
    hub.only(fields, block_dim=hidden, conv_dim=hidden, conv_dim_out=hidden, num_heads=heads)
    hub.only(fields, block_norm_eps=eps, block_use_swiglu=True, use_pos_enc=True)
    conv = ShortConvSpec(
        width=hidden,
        kernel=fields.integer("conv_L_cache", 3),
        bias=fields.flag("conv_bias", False),
    )
    recurrent.checked(conv, fields.where)
    attention = AttentionSpec(norm="head")
    layers = [
        LayerSpec(
            attention=attention,
            recurrent=None if kind == recurrent.FULL else conv,
            feed_forward=feed_forward,
        )
        for kind, feed_forward in zip(_kinds(fields, count), feed_forwards, strict=True)
    ]
    return decoder(HubSource(fields), name, sizes, layers, norm=NormSpec(eps=eps), theta=THETA)


def _kinds(fields: Fields, count: int) -> list[str]:
    key = "full_attn_idxs"
    full = set(fields.listed(key, int) if key in fields else range(count))
    default = [recurrent.FULL if number in full else recurrent.CONV for number in range(count)]
    return recurrent.layer_kinds(fields, count, default, recurrent.FULL, recurrent.CONV)


def _adjusted(fields: Fields, stated: int) -> int:
    """The inner dimension of feed-forward layers, of which the file may state three halves."""
    multiple = fields.integer("block_multiple_of", 256)
    factor = fields.number("block_ffn_dim_multiplier", 1.0)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return stated
    if multiple < 1:
        raise UnsupportedModel(
            f"{fields.where}: block_multiple_of is {multiple}; it must be positive"
        )
    inner = int(factor * int(2 * stated / 3))
    return -(-inner // multiple) * multiple


MODULES = {
    "operator_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "embedding_norm": "norm",
    "self_attn.out_proj": "self_attn.o_proj",
    "self_attn.q_layernorm": "self_attn.q_norm",
    "self_attn.k_layernorm": "self_attn.k_norm",
    "conv.in_proj": "recurrent.in_proj",
    "conv.conv": "recurrent.conv",
    "conv.out_proj": "recurrent.out_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.gate": "mlp.router",
    "feed_forward.expert_bias": "mlp.router.correction",
    "feed_forward.experts.*.w1": "mlp.experts.*.gate_proj",
    "feed_forward.experts.*.w2": "mlp.experts.*.down_proj",
    "feed_forward.experts.*.w3": "mlp.experts.*.up_proj",
}
NAMES = TensorNames(MODULES)
GGUF_NAMES = TensorNames({"embedding_norm": "norm"}, stacked=GGUF_EXPERTS.stacked)
"""Files call the last norm that of embeddings, as the hub's do."""


def _gguf_dense(model: GGUFMetadata) -> ModelConfig:
    return _gguf(model, "lfm2", None)


def _gguf_moe(model: GGUFMetadata) -> ModelConfig:
    keys = model.keys
    dense = keys.integer("leading_dense_block_count", 0)
    hub.only(keys, expert_gating_func=recurrent.GGUF_SIGMOID)
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=keys.integer("expert_feed_forward_length"),
        router="sigmoid",
        normalised=keys.flag("expert_weights_norm", True),
        sum_floor=1e-6,
        correction=f"blk.{dense}.exp_probs_b.bias" in model.tensors,
        scale=keys.positive("expert_weights_scale", 1.0),
    )
    return _gguf(model, "lfm2_moe", experts, dense)


def _gguf(
    model: GGUFMetadata, name: str, experts: ExpertsSpec | None, dense: int = 0
) -> ModelConfig:
    count = bounds.layer_count(model.keys, "block_count")
    heads = recurrent.gguf_per_layer(model.keys, recurrent.GGUF_KV_HEADS, count)
    model = recurrent.gguf_of_one_size(model, count)
    sizes = model.sizes()
    conv = ShortConvSpec(width=sizes["hidden_size"], kernel=model.keys.integer("shortconv.l_cache"))
    recurrent.checked(conv, model.keys.where)
    layers = [
        LayerSpec(
            attention=AttentionSpec(norm="head"),
            recurrent=None if kv_heads else conv,
            feed_forward=FeedForwardSpec(experts=None if number < dense else experts),
        )
        for number, kv_heads in enumerate(heads)
    ]
    return decoder(GGUFSource(model), name, sizes, layers)


LFM2 = Family(
    "lfm2",
    ("Lfm2ForCausalLM",),
    "LFM2",
    _hub_dense,
    hub_names=NAMES,
    gguf="lfm2",
    read_gguf=_gguf_dense,
    gguf_names=GGUF_NAMES,
)
LFM2_MOE = Family(
    "lfm2_moe",
    ("Lfm2MoeForCausalLM",),
    "LFM2-MoE",
    _hub_moe,
    hub_names=NAMES,
    gguf="lfm2moe",
    read_gguf=_gguf_moe,
    gguf_names=GGUF_NAMES,
)
