"""Granite 4: Granite 3 with Mamba 2 in most layers, or in none, often without rotary positions;
dense, or with a mixture of experts beside one that every token has.

Source: Granite team, "Granite 4.0", 2025.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import gguf_recurrent as gguf
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.granite import gguf_model, model_of
from penstock.families.qwen3_moe import GGUF_NAMES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec
from penstock.model.recurrent_spec import Mamba2Spec, RecurrentSpec

OF_MAMBA = (
    "mamba_n_heads",
    "mamba_expand",
    "mamba_d_head",
    "mamba_n_groups",
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_conv_bias",
    "mamba_proj_bias",
    "time_step_limit",
)


def _hub(fields: Fields) -> ModelConfig:
    fields.ignore("mamba_chunk_size", "init_method")  # of the computation, and of training
    hub.only(fields, normalization_function="rmsnorm")
    sizes, count = hub.sizes(fields), fields.integer("num_local_experts", 8)
    shared = fields.integer("shared_intermediate_size", 1024)
    if count == 0:
        fields.ignore("num_experts_per_tok")
        return _model(fields, sizes | {"intermediate_size": shared}, FeedForwardSpec())
    experts = ExpertsSpec(
        **hub.expert_counts(fields.completed(num_local_experts=count), "num_local_experts"),
        inner=sizes["intermediate_size"],
        shared_inner=shared,
    )
    return _model(fields, sizes, FeedForwardSpec(experts=experts))


def _model(fields: Fields, sizes: dict[str, Any], feed_forward: FeedForwardSpec) -> ModelConfig:
    rotates = fields.text("position_embedding_type", "nope")
    if rotates not in ("nope", "rope"):
        raise UnsupportedModel(
            f"{fields.where}: position_embedding_type is {rotates!r}; nope and rope are served"
        )
    plain = model_of(fields, "granitemoehybrid", sizes, feed_forward)
    layer = plain.layers[0]
    attending = msgspec.structs.replace(
        layer,
        attention=msgspec.structs.replace(layer.attention, rope=0 if rotates == "rope" else None),
    )
    kinds = _kinds(fields, sizes["num_layers"])
    mixing = attending
    if recurrent.LINEAR in kinds:
        mamba = _mamba(fields, sizes["hidden_size"])
        mixing = msgspec.structs.replace(attending, recurrent=mamba)
    else:
        fields.ignore(*OF_MAMBA)
    return msgspec.structs.replace(
        plain,
        layers=hub.shared(attending if kind == recurrent.FULL else mixing for kind in kinds),
        ropes=plain.ropes if rotates == "rope" else (),
    )


def _kinds(fields: Fields, count: int) -> list[str]:
    key = "layers_block_type" if "layers_block_type" in fields else "layer_types"
    default = [recurrent.LINEAR] * count
    return recurrent.layer_kinds(fields, count, default, recurrent.FULL, recurrent.LINEAR, key=key)


def _mamba(fields: Fields, hidden: int) -> RecurrentSpec:
    heads = fields.integer("mamba_n_heads", 128)
    inner = fields.integer("mamba_expand", 2) * hidden
    size = fields.values.get("mamba_d_head")
    known = "mamba_d_head" in fields and size != "auto"
    dim = fields.integer("mamba_d_head") if known else inner // max(heads, 1)
    if dim * heads != inner:
        raise UnsupportedModel(
            f"{fields.where}: {heads} Mamba heads of {dim} don't make up the inner size {inner}"
        )
    spec = Mamba2Spec(
        heads=heads,
        head_dim=dim,
        groups=fields.integer("mamba_n_groups", 1),
        state=fields.integer("mamba_d_state", 256),
        kernel=fields.integer("mamba_d_conv", 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias", False),
        **recurrent.time_limits(fields),
    )
    return recurrent.checked(spec, fields.where)


MAMBA = {
    "mamba.conv1d": "recurrent.conv",
    **{
        f"mamba.{each}": f"recurrent.{each}"
        for each in ("in_proj", "A_log", "D", "dt_bias", "norm", "out_proj")
    },
}


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """No layer rotates: the converter writes these files for others of the hub's models only, which
    say so."""
    keys = model.keys
    hub.only(keys, **{"rope.scaling.finetuned": False})
    keys.ignore("rope.freq_base", "rope.dimension_count")
    count = bounds.layer_count(keys, "block_count")
    heads = gguf.per_layer(keys, gguf.KV_HEADS, count)
    mamba = gguf.mamba2(model, conv_bias=model.has_in_any("ssm_conv1d.bias", count))
    plain = gguf_model(gguf.of_one_size(model, count), "granitemoehybrid")
    layer = msgspec.structs.replace(plain.layers[0], feed_forward=_gguf_feed_forward(model, plain))
    attention = msgspec.structs.replace(layer.attention, rope=None)
    attending = msgspec.structs.replace(layer, attention=attention)
    mixing = msgspec.structs.replace(attending, recurrent=mamba)
    layers = hub.shared(attending if kv_heads else mixing for kv_heads in heads)
    return msgspec.structs.replace(plain, layers=layers, ropes=())


def _gguf_feed_forward(model: GGUFMetadata, plain: ModelConfig) -> FeedForwardSpec:
    keys, shared = model.keys, "expert_shared_feed_forward_length"
    if not keys.integer("expert_count", 0):
        hub.only(keys, **{shared: plain.intermediate_size, "expert_used_count": 0})
        return FeedForwardSpec()
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=keys.integer("expert_feed_forward_length", plain.intermediate_size),
        shared_inner=keys.integer(shared, 0),
    )
    return FeedForwardSpec(experts=experts)


GRANITE_HYBRID = Family(
    "granitemoehybrid",
    ("GraniteMoeHybridForCausalLM",),
    "Granite 4",
    _hub,
    hub_names=TensorNames(
        {
            **MAMBA,
            "block_sparse_moe.router.layer": "mlp.router",
            "shared_mlp.output_linear": "mlp.shared_expert.down_proj",
        },
        fused={
            "shared_mlp.input_linear": ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
        },
        stacked={
            "block_sparse_moe.input_linear": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
            "block_sparse_moe.output_linear": ("mlp.experts.*.down_proj",),
        },
        shared_alone=True,
    ),
    gguf="granitehybrid",
    read_gguf=_gguf,
    gguf_names=GGUF_NAMES,
)
