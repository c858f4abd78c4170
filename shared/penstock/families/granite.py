"""Granite 3, dense and with experts: Llama with multipliers of embeddings, scores, residuals and
logits.

Source: Granite team, "Granite 3.0 language models", 2024; Yang et al., "Tensor programs V", 2022.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import (
    OUTPUT,
    QUERY,
    UP,
    GGUFSource,
    HubSource,
    Source,
    decoder,
    of_gguf,
    of_hub,
)
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock.model.recurrent_spec import Mamba2Spec, RecurrentSpec


def _granite(source: Source) -> ModelConfig:
    return _alike(source, "granite")


def _moe(source: Source) -> ModelConfig:
    return _alike(source, "granitemoe")


def _moe_shared(fields: Fields) -> ModelConfig:
    shared = fields.integer("shared_intermediate_size", 0)
    return sparse_model(HubSource(fields), "granitemoeshared", shared_inner=shared)


def _alike(source: Source, name: str) -> ModelConfig:
    """GGUF files of Granite 4 without Mamba are called like Granite 3's, and say what they lack."""
    if isinstance(source, GGUFSource):
        source.fields.ignore(*recurrent.GGUF_OF_MAMBA)
        return gguf_model(source.model, name)
    if name == "granitemoe":
        return sparse_model(source, name, shared_inner=0)
    feed_forward = FeedForwardSpec(bias=source.bias(UP, "mlp_bias"))
    return model_of(source, name, source.sizes(), feed_forward)


def sparse_model(source: HubSource, name: str, *, shared_inner: int) -> ModelConfig:
    """Reads a model with experts in all layers, plus a shared expert where its inner dimension
    isn't 0."""
    sizes = source.sizes()
    counts = source.expert_counts("num_local_experts")
    experts = ExpertsSpec(**counts, inner=sizes["intermediate_size"], shared_inner=shared_inner)
    return model_of(source, name, sizes, FeedForwardSpec(experts=experts))


def model_of(
    source: Source, name: str, sizes: dict[str, Any], feed_forward: FeedForwardSpec
) -> ModelConfig:
    """Reads what all Granite models have, whose layers are alike."""
    source.activation("silu")
    if isinstance(source, GGUFSource):
        scale = source.fields.optional_number("attention.scale")
    else:
        scale = source.number("attention_multiplier", 1.0)
    layer = LayerSpec(
        attention=AttentionSpec(
            scale=scale, qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT)
        ),
        feed_forward=feed_forward,
        residual_multiplier=source.number("residual_multiplier", 1.0, "residual_scale", 1.0),
    )
    scaling = source.number("logits_scaling", 1.0, "logit_scale", 1.0)
    if scaling == 0:
        key = "logit_scale" if isinstance(source, GGUFSource) else "logits_scaling"
        raise UnsupportedModel(f"{source.fields.where}: {key} is 0; logits are divided by it")
    return decoder(
        source,
        name,
        sizes,
        [layer],
        embedding_multiplier=source.number("embedding_multiplier", 1.0, "embedding_scale", 1.0),
        logits_multiplier=1.0 / scaling,
    )


MOE_NAMES = TensorNames(
    {"block_sparse_moe.router.layer": "mlp.router"},
    stacked={
        "block_sparse_moe.input_linear": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
        "block_sparse_moe.output_linear": ("mlp.experts.*.down_proj",),
    },
)


def gguf_model(model: GGUFMetadata, name: str) -> ModelConfig:
    """Reads what all Granite models have, whose layers are alike."""
    sizes = model.sizes()
    feed_forward = _gguf_feed_forward(model, sizes["intermediate_size"])
    return model_of(GGUFSource(model), name, sizes, feed_forward)


def _gguf_feed_forward(model: GGUFMetadata, inner: int) -> FeedForwardSpec:
    """inner: of a network without experts, and of an expert where the file doesn't say."""
    keys, shared = model.keys, "expert_shared_feed_forward_length"
    if not keys.integer("expert_count", 0):
        hub.only(keys, **{shared: inner})
        keys.ignore("expert_used_count")
        return FeedForwardSpec(bias=model.has("ffn_up.bias"))
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=keys.integer("expert_feed_forward_length", inner),
        shared_inner=keys.integer(shared, 0),
    )
    return FeedForwardSpec(experts=experts)


GRANITE = Family(
    "granite",
    ("GraniteForCausalLM",),
    "Granite 3",
    of_hub(_granite),
    gguf="granite",
    read_gguf=of_gguf(_granite),
    gguf_names=TensorNames(pairs_adjacent=True),
)
GRANITE_MOE = Family(
    "granitemoe",
    ("GraniteMoeForCausalLM",),
    "Granite 3 MoE",
    of_hub(_moe),
    hub_names=MOE_NAMES,
    gguf="granitemoe",
    read_gguf=of_gguf(_moe),
    gguf_names=TensorNames(stacked=GGUF_NAMES.stacked, pairs_adjacent=True),
)
GRANITE_MOE_SHARED = Family(
    "granitemoeshared",
    ("GraniteMoeSharedForCausalLM",),
    "Granite 3 MoE with a shared expert",
    _moe_shared,
    hub_names=TensorNames(
        {**MOE_NAMES.modules, "shared_mlp.output_linear": "mlp.shared_expert.down_proj"},
        fused={
            "shared_mlp.input_linear": ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
        },
        stacked=MOE_NAMES.stacked,
    ),
)


# Granite 4: Granite 3 with Mamba 2 in most layers, or in none, often without rotary positions;
# dense, or with a mixture of experts and a shared one.
#
# Source: Granite team, "Granite 4.0", 2025.

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


def _hub_hybrid(fields: Fields) -> ModelConfig:
    fields.ignore("mamba_chunk_size", "init_method")  # of the computation, and of training
    hub.only(fields, normalization_function="rmsnorm")
    sizes, count = hub.sizes(fields), fields.integer("num_local_experts", 8)
    shared = fields.integer("shared_intermediate_size", 1024)
    if count == 0:
        fields.ignore("num_experts_per_tok")
        return _hybrid_model(fields, sizes | {"intermediate_size": shared}, FeedForwardSpec())
    experts = ExpertsSpec(
        **hub.expert_counts(fields.completed(num_local_experts=count), "num_local_experts"),
        inner=sizes["intermediate_size"],
        shared_inner=shared,
    )
    return _hybrid_model(fields, sizes, FeedForwardSpec(experts=experts))


def _hybrid_model(
    fields: Fields, sizes: dict[str, Any], feed_forward: FeedForwardSpec
) -> ModelConfig:
    rotates = fields.text("position_embedding_type", "nope")
    if rotates not in ("nope", "rope"):
        raise UnsupportedModel(
            f"{fields.where}: position_embedding_type is {rotates!r}; nope and rope are served"
        )
    plain = model_of(HubSource(fields), "granitemoehybrid", sizes, feed_forward)
    layer = plain.layers[0]
    attending = msgspec.structs.replace(
        layer,
        attention=msgspec.structs.replace(layer.attention, rope=0 if rotates == "rope" else None),
    )
    kinds = _hybrid_kinds(fields, sizes["num_layers"])
    mixing = attending
    if recurrent.LINEAR in kinds:
        mamba = mamba_of(fields, sizes["hidden_size"])
        mixing = msgspec.structs.replace(attending, recurrent=mamba)
    else:
        fields.ignore(*OF_MAMBA)
    return msgspec.structs.replace(
        plain,
        layers=hub.shared(attending if kind == recurrent.FULL else mixing for kind in kinds),
        ropes=plain.ropes if rotates == "rope" else (),
    )


def _hybrid_kinds(fields: Fields, count: int) -> list[str]:
    key = "layers_block_type" if "layers_block_type" in fields else "layer_types"
    default = [recurrent.LINEAR] * count
    return recurrent.layer_kinds(fields, count, default, recurrent.FULL, recurrent.LINEAR, key=key)


def mamba_of(fields: Fields, hidden: int) -> RecurrentSpec:
    """Reads layers of Mamba 2, whose inner size is a multiple of the hidden size."""
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


def _gguf_hybrid(model: GGUFMetadata) -> ModelConfig:
    """Layers rotate in files of Bamba, which say so."""
    keys = model.keys
    rotates = keys.flag("rope.scaling.finetuned", False)
    if not rotates:
        keys.ignore("rope.freq_base", "rope.dimension_count")
    count = bounds.layer_count(keys, "block_count")
    heads = recurrent.gguf_per_layer(keys, recurrent.GGUF_KV_HEADS, count)
    mamba = recurrent.gguf_mamba2(model, conv_bias=model.has_in_any("ssm_conv1d.bias", count))
    plain = gguf_model(recurrent.gguf_of_one_size(model, count), "granitemoehybrid")
    layer = plain.layers[0]
    attention = msgspec.structs.replace(layer.attention, rope=0 if rotates else None)
    attending = msgspec.structs.replace(layer, attention=attention)
    mixing = msgspec.structs.replace(attending, recurrent=mamba)
    layers = hub.shared(attending if kv_heads else mixing for kv_heads in heads)
    return msgspec.structs.replace(plain, layers=layers, ropes=plain.ropes if rotates else ())


GRANITE_HYBRID = Family(
    "granitemoehybrid",
    ("GraniteMoeHybridForCausalLM",),
    "Granite 4",
    _hub_hybrid,
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
    read_gguf=_gguf_hybrid,
    gguf_names=TensorNames(stacked=GGUF_NAMES.stacked, pairs_adjacent="whole heads"),
)
