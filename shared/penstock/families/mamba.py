"""Mamba and Falcon Mamba: recurrent layers of Mamba 1 alone. In Falcon Mamba, steps in time and
maps are normed without weights.

Source: Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023; Zuo et
al., "Falcon Mamba: the first competitive attention-free 7B language model", 2024.
"""

from __future__ import annotations

from typing import Any

from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.mamba2 import MAX_POSITION, OF_TRAINING, without_attention
from penstock.families.nemotron import NAMES
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.recurrent_spec import Mamba1Spec, RecurrentSpec

OF_COMPUTATION = (
    "fused_add_norm",
    "residual_in_fp32",
    "time_step_init_scheme",
    "time_step_scale",
    "use_associative_scan",
    "use_mambapy",
)
SAID_TWICE = ("d_inner", "d_model", "n_layer", "pad_vocab_size_multiple")
PARTS = {
    "x_proj": "recurrent.x_proj",
    "dt_proj": "recurrent.dt_proj",
    "dt_layernorm": "recurrent.dt_norm",
    "b_layernorm": "recurrent.b_norm",
    "c_layernorm": "recurrent.c_norm",
}
"""Names of what Mamba 2 has no counterpart of."""


def _hub(fields: Fields) -> ModelConfig:
    return _read(fields, "mamba")


def _hub_falcon(fields: Fields) -> ModelConfig:
    eps = fields.number("mixer_rms_eps", 1e-6)
    return _read(fields, "falcon_mamba", norms="plain", norm_eps=eps)


def _read(fields: Fields, name: str, **norms: Any) -> ModelConfig:
    hub.activation(fields, "silu")
    fields.ignore(*(each for each in OF_TRAINING if each != "time_step_rank"))
    fields.ignore(*OF_COMPUTATION, *SAID_TWICE)
    hidden = fields.integer("hidden_size", 768)
    inner = fields.integer("intermediate_size", fields.integer("expand", 2) * hidden)
    hub.only(fields, rms_norm=True, ssm_cfg={})
    spec = Mamba1Spec(
        inner=inner,
        state=fields.integer("state_size", 16),
        kernel=fields.integer("conv_kernel", 4),
        rank=time_rank(fields, "time_step_rank", hidden),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        **norms,
    )
    return without_attention(
        recurrent.checked(spec, fields.where),
        name,
        vocab_size=fields.integer("vocab_size", 50280),
        hidden_size=hidden,
        num_layers=bounds.layer_count(fields, "num_hidden_layers"),
        max_position=fields.integer("max_position_embeddings", MAX_POSITION),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        norm=NormSpec(eps=fields.number("layer_norm_epsilon", 1e-5)),
    )


def time_rank(fields: Fields, key: str, hidden: int) -> int:
    """Numbers of the vector that steps in time are made of."""
    auto = key not in fields or fields.values[key] == "auto"
    return -(-hidden // 16) if auto else fields.integer(key)


def gguf_mamba1(model: GGUFMetadata, count: int, **norms: Any) -> RecurrentSpec:
    """count: of layers. norms: fields of Mamba1Spec."""
    keys = model.keys
    spec = Mamba1Spec(
        inner=keys.integer("ssm.inner_size"),
        state=keys.integer("ssm.state_size"),
        kernel=keys.integer("ssm.conv_kernel"),
        rank=keys.integer("ssm.time_step_rank"),
        conv_bias=model.has_in_any("ssm_conv1d.bias", count),
        bias=model.has_in_any("ssm_in.bias", count),
        **norms,
    )
    return recurrent.checked(spec, keys.where)


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """llama.cpp has one epsilon for all norms."""
    keys, eps = model.keys, model.rms_eps()
    keys.ignore("attention.head_count", "feed_forward_length")  # 0: there are none
    normed = keys.flag("ssm.dt_b_c_rms", False)
    norms = {"norms": "plain", "norm_eps": eps} if normed else {}
    count = bounds.layer_count(keys, "block_count")
    return without_attention(
        gguf_mamba1(model, count, **norms),
        "falcon_mamba" if normed else "mamba",
        vocab_size=model.vocab_size,
        hidden_size=keys.integer("embedding_length"),
        num_layers=count,
        max_position=keys.integer("context_length"),
        tie_word_embeddings="output.weight" not in model.tensors,
        norm=NormSpec(eps=eps),
    )


HUB_NAMES = TensorNames(
    {**NAMES.modules, **{f"mixer.{theirs}": ours for theirs, ours in PARTS.items()}}
)
MAMBA = Family(
    "mamba",
    ("MambaForCausalLM",),
    "Mamba",
    _hub,
    hub_names=HUB_NAMES,
    gguf="mamba",
    read_gguf=_gguf,
)
FALCON_MAMBA = Family(
    "falcon_mamba",
    ("FalconMambaForCausalLM",),
    "Falcon Mamba",
    _hub_falcon,
    hub_names=HUB_NAMES,
    gguf="mamba",
    read_gguf=_gguf,
)
