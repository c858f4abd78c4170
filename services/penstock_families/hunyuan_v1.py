"""Hunyuan 0.5B to 7B, Hunyuan-MT, and Hunyuan-A13B: Llama's layers with queries and keys that are
normalised head by head after the rotation, whose base is scaled by a factor in config.json; A13B
has experts plus a shared one.

Sources: Tencent, "Hunyuan-A13B technical report", 2025; what they compute, as transformers' classes
and llama.cpp have it.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import OUTPUT, QUERY, GGUFSource, HubSource, Source, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock.model.rope_spec import RopeSpec

OF_ALPHA = ("alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
"""Keys about a stretched rotation, of which the first one alone counts."""


def _model(source: Source, experts: ExpertsSpec | None) -> ModelConfig:
    source.activation("silu")
    source.only(use_qk_norm=True, use_cla=False, mlp_bias=False)
    attention = AttentionSpec(
        norm="head",
        norm_behind=True,
        qkv_bias=source.bias(QUERY),
        output_bias=source.bias(OUTPUT),
    )
    layer = LayerSpec(attention=attention, feed_forward=FeedForwardSpec(experts=experts))
    name, sizes = "hunyuan_v1_dense" if experts is None else "hunyuan_v1_moe", source.sizes()
    rope = _rope(source.fields, sizes["head_dim"]) if isinstance(source, HubSource) else None
    return decoder(source, name, sizes, [layer], eps=1e-5, rope=rope)


def _rope(fields: Fields, dim: int) -> RopeSpec:
    """With `alpha`, the base is theta * alpha ** (dim / (dim - 2)), however long a sequence is."""
    rope = hub.rope(fields, dim, harmless=OF_ALPHA)
    settings = fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    kind = settings.text("rope_type", settings.text("type", "default"))
    if kind != "dynamic" or not settings.number("alpha", 0.0):
        return rope
    if dim < 4:
        raise UnsupportedModel(f"{fields.where}: head_dim is {dim}; 4 or more are needed")
    return msgspec.structs.replace(
        rope, theta=rope.theta * settings.positive("alpha") ** (dim / (dim - 2))
    )


def _hub_dense(fields: Fields) -> ModelConfig:
    return _model(HubSource(fields), None)


def _hub_moe(fields: Fields) -> ModelConfig:
    inner = fields.integer("intermediate_size")
    for key, served in (("num_shared_expert", 1), ("moe_intermediate_size", inner)):
        if key in fields and _of_all_layers(fields, key) != served:
            raise fields.wrong(key, str(served))
    active = "moe_topk" if "moe_topk" in fields else "num_experts_per_tok"
    count = "num_experts" if "num_experts" in fields else "num_local_experts"
    counted = fields.replaced(
        {
            "num_experts": _of_all_layers(fields, count, 1),
            "num_experts_per_tok": _of_all_layers(fields, active, 1),
        }
    )
    experts = ExpertsSpec(
        **hub.expert_counts(counted, "num_experts"), inner=inner, shared_inner=inner
    )
    return _model(HubSource(fields), experts)


def _of_all_layers(fields: Fields, key: str, default: int | None = None) -> int:
    """A number that the file has once, or once for each layer. Raises UnsupportedModel if layers
    differ."""
    if not isinstance(fields.values.get(key), list):
        return fields.integer(key, default)
    found = fields.listed(key, int)
    if not found or set(found) != {found[0]}:
        raise fields.wrong(key, "one number for all layers")
    return found[0]


HUB_NAMES = {
    "self_attn.query_layernorm": "self_attn.q_norm",
    "self_attn.key_layernorm": "self_attn.k_norm",
}


def _gguf(model: GGUFMetadata) -> ModelConfig:
    keys, experts = model.keys, None
    keys.ignore("rope.scaling.original_context_length")
    if keys.integer("expert_count", 0):
        experts = ExpertsSpec(
            **model.expert_counts(),
            inner=keys.integer("expert_feed_forward_length"),
            shared_inner=keys.integer("expert_shared_feed_forward_length", 0),
        )
        hub.only(keys, expert_shared_count=1)
    return _model(GGUFSource(model), experts)


HUNYUAN_V1_DENSE = Family(
    "hunyuan_v1_dense",
    ("HunYuanDenseV1ForCausalLM",),
    "Hunyuan 0.5B to 7B, Hunyuan-MT",
    _hub_dense,
    hub_names=TensorNames(HUB_NAMES),
    gguf="hunyuan-dense",
    read_gguf=_gguf,
)
HUNYUAN_V1_MOE = Family(
    "hunyuan_v1_moe",
    ("HunYuanMoEV1ForCausalLM",),
    "Hunyuan-A13B",
    _hub_moe,
    hub_names=TensorNames(
        {
            **HUB_NAMES,
            "mlp.gate.wg": "mlp.router",
            **{
                f"mlp.shared_mlp.{each}": f"mlp.shared_expert.{each}"
                for each in ("gate_proj", "up_proj", "down_proj")
            },
        }
    ),
    gguf="hunyuan-moe",
    read_gguf=_gguf,
    gguf_names=GGUF_NAMES,
)
