"""Kimi Linear: three of four layers are gated delta nets whose channels decay each by itself (KDA),
and the others attend over latents, without rotation. Experts are DeepSeek-V3's.

Source: Kimi Team, "Kimi Linear: an expressive, efficient attention architecture", 2025.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace as with_fields

from msgspec.structs import replace

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.deepseek import GGUF_NAMES as GGUF_EXPERTS
from penstock.families.deepseek import (
    NAMES,
    corrected_experts,
    dense_layers,
    gguf_model,
    latent_model,
)
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.recurrent_spec import GatedDeltaSpec, RecurrentSpec
from penstock.model.rope_spec import RopeScaling, RopeSpec

KEYS = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "moe_router_activation_func": "scoring_func",
    "num_expert_group": "n_group",
    "num_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
"""config.json's keys -> DeepSeek-V3's."""
OF_DELTA = "linear_attn_config"
FULL_LAYERS, DELTA_LAYERS = "full_attn_layers", "kda_layers"


def _hub(fields: Fields) -> ModelConfig:
    fields.ignore(*KEYS, "use_grouped_topk", "rope_theta", "rope_parameters", "rope_scaling")
    fields = fields.replaced(
        {theirs: fields.values[key] for key, theirs in KEYS.items() if key in fields}
    )
    hub.only(fields, mla_use_nope=True)
    settings = fields.section(OF_DELTA)
    delta, kinds = _delta(fields, settings), _kinds(fields, settings)
    hub.refuse_unknown(settings, ())
    attends = [kind == recurrent.FULL for kind in kinds]
    experts = corrected_experts(fields, scale=2.446)
    found = latent_model(
        fields.without("rope_theta", "rope_parameters", "rope_scaling"),
        "kimi_linear",
        experts,
        dense=dense_layers(fields, 1),
        eps=1e-5,
    )
    return _with_delta(found, delta, attends)


def _with_delta(found: ModelConfig, delta: RecurrentSpec, attends: Iterable[bool]) -> ModelConfig:
    """found: the model with attention in all layers. attends: of each layer, whether it has it."""
    layers = (
        replace(found.layer(number), recurrent=None if each else delta)
        for number, each in enumerate(attends)
    )
    (turning,) = found.ropes
    # No pair turns: the part of a head that would is an ordinary one that all heads share.
    still = RopeSpec(dims=turning.dims, scaling=RopeScaling(kind="proportional", kept=0))
    return replace(found, ropes=(still,), layers=hub.shared(layers))


def _delta(fields: Fields, settings: Fields) -> RecurrentSpec:
    size = settings.integer("head_dim", fields.integer("linear_head_dim", 128))
    heads = settings.integer("num_heads", fields.integer("linear_num_heads", 32))
    spec = GatedDeltaSpec(
        key_heads=heads,
        value_heads=heads,
        key_dim=size,
        value_dim=size,
        kernel=settings.integer(
            "short_conv_kernel_size", fields.integer("linear_conv_kernel_dim", 4)
        ),
        rank=size,
    )
    return recurrent.checked(spec, fields.where)


def _kinds(fields: Fields, settings: Fields) -> list[str]:
    """Layers are counted from 1 in the lists of the section."""
    count = bounds.layer_count(fields, "num_hidden_layers")
    if not (FULL_LAYERS in settings and DELTA_LAYERS in settings) or "layer_types" in fields:
        settings.ignore(FULL_LAYERS, DELTA_LAYERS)
        default = [
            recurrent.FULL if number and number % 4 == 0 else recurrent.LINEAR
            for number in range(count)
        ]
        return recurrent.layer_kinds(fields, count, default, recurrent.FULL, recurrent.LINEAR)
    full, delta = settings.listed(FULL_LAYERS, int), settings.listed(DELTA_LAYERS, int)
    if sorted(full + delta) != list(range(1, count + 1)):
        raise UnsupportedModel(
            f"{settings.where}: {FULL_LAYERS} and {DELTA_LAYERS} must name each of the layers 1 to "
            f"{count} once"
        )
    return [recurrent.FULL if at in full else recurrent.LINEAR for at in range(1, count + 1)]


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """Layers without KV heads are recurrent, with as many heads as attention has."""
    keys = model.keys
    count = bounds.layers_without_drafts(keys)
    kv_heads = recurrent.gguf_per_layer(keys, recurrent.GGUF_KV_HEADS, count)
    # llama.cpp divides experts' weights by their sum, whatever the file says.
    stated = {"attention.value_length": keys.integer("attention.value_length_mla")}
    completed = keys.completed(**stated, expert_weights_norm=True)
    found = replace(gguf_model(with_fields(model, keys=completed)), architecture="kimi_linear")
    size = keys.integer("kda.head_dim")
    delta = GatedDeltaSpec(
        key_heads=found.num_heads,
        value_heads=found.num_heads,
        key_dim=size,
        value_dim=size,
        kernel=keys.integer("ssm.conv_kernel"),
        rank=size,
    )
    return _with_delta(found, recurrent.checked(delta, keys.where), map(bool, kv_heads))


_EXPERT = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
KIMI_LINEAR = Family(
    "kimi_linear",
    ("KimiLinearForCausalLM",),
    "Kimi Linear",
    _hub,
    hub_names=TensorNames(
        {
            **NAMES.modules,
            **{
                f"block_sparse_moe.{theirs.removeprefix('mlp.')}": ours
                for theirs, ours in NAMES.modules.items()
                if theirs.startswith("mlp.")
            },
            # transformers writes so of layers without experts, too.
            **{f"block_sparse_moe.{each}": f"mlp.{each}" for each in _EXPERT.values()},
            **{
                f"block_sparse_moe.experts.*.{theirs}": f"mlp.experts.*.{ours}"
                for theirs, ours in _EXPERT.items()
            },
        },
        in_recurrent={
            f"self_attn.{theirs}": f"recurrent.{ours}"
            for theirs, ours in {
                "q_proj": "in_proj_q",
                "k_proj": "in_proj_k",
                "v_proj": "in_proj_v",
                "q_conv1d": "q_conv",
                "k_conv1d": "k_conv",
                "v_conv1d": "v_conv",
                "conv1d": "conv",
                "f_a_proj": "in_proj_a_down",
                "f_b_proj": "in_proj_a",
                "g_a_proj": "in_proj_z_down",
                "g_b_proj": "in_proj_z",
                "b_proj": "in_proj_b",
                "A_log": "A_log",
                "dt_bias": "dt_bias",
                "o_norm": "norm",
                "o_proj": "out_proj",
            }.items()
        },
        layers_for_drafts=True,
    ),
    gguf="kimi-linear",
    read_gguf=_gguf,
    gguf_names=TensorNames(
        stacked=GGUF_EXPERTS.stacked,
        layers_for_drafts=True,
        in_recurrent={
            "self_attn.q_proj": "recurrent.in_proj_q",
            "self_attn.k_proj": "recurrent.in_proj_k",
            "self_attn.v_proj": "recurrent.in_proj_v",
            "self_attn.o_proj": "recurrent.out_proj",
        },
    ),
)
