"""Ling 3: of each group of layers, all but the last are gated delta nets whose channels decay each
by itself, within a bound (KDA); the last attends over latents, and each of its heads has a gate.
Experts are Ling 2's.

Source: what vLLM's model bailing_moe_v3 computes.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.deepseek import NAMES as LATENT
from penstock.families.deepseek import latent_model
from penstock.families.family import Family
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.recurrent_spec import GatedDeltaSpec, RecurrentSpec
from penstock_families.bailing import NAMES as BAILING
from penstock_families.bailing import sigmoid_experts

ONLY: dict[str, object] = {
    "group_norm_size": 1,
    "kda_safe_gate": True,
    "linear_silu": True,
    "no_kda_lora": True,
    "scale_router_input": False,
    "up_proj_norm": False,
    "use_bias": False,
    "use_kda_lora": False,
    "use_mla_nope": False,
    "use_nGPT": False,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "value_norm": False,
}
"""Settings of which one value is served."""
GATES = "gated_attention_proj_granularity_type"
LIMITS = ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")
PARTIAL = "partial_rotary_factor"


def _hub(fields: Fields) -> ModelConfig:
    hub.only(fields, **ONLY)
    for key in LIMITS:
        if any(fields.values.get(key) or ()):
            raise fields.wrong(key, "null: swiglu without bounds")
    fields.ignore(*LIMITS, PARTIAL, "rotary_dim")  # qk_rope_head_dim says how much rotates
    experts = sigmoid_experts(fields)
    delta = _delta(fields)
    rope = dict(fields.section("rope_parameters").values)
    rope.pop(PARTIAL, None)
    own = fields.without(PARTIAL).replaced({"rope_parameters": rope} if rope else {})
    dense = fields.integer("first_k_dense_replace", 0)
    found = latent_model(own, "bailing_moe_v3", experts, dense=dense)
    gates = fields.text(GATES, "none")
    if gates not in ("none", "head_wise"):
        raise fields.wrong(GATES, "head_wise or null")
    group = fields.integer("layer_group_size", 1)
    if group < 1:
        raise fields.wrong("layer_group_size", "a positive number")
    whole = found.num_layers // group * group
    attends = [(at + 1) % group == 0 or at >= whole for at in range(found.num_layers)]
    return _with_delta(found, delta, attends, gated=gates == "head_wise")


def _delta(fields: Fields) -> RecurrentSpec:
    lowest = fields.number("kda_lower_bound", -5.0)
    if lowest >= 0:
        raise fields.wrong("kda_lower_bound", "a number below 0")
    spec = _spec(
        fields.integer("num_attention_heads"),
        fields.integer("head_dim"),
        fields.integer("short_conv_kernel_size", 4),
        lowest,
    )
    return recurrent.checked(spec, fields.where)


def _spec(heads: int, size: int, kernel: int, lowest: float) -> GatedDeltaSpec:
    return GatedDeltaSpec(
        key_heads=heads,
        value_heads=heads,
        key_dim=size,
        value_dim=size,
        kernel=kernel,
        whole=True,
        lowest=lowest,
    )


def _with_delta(
    found: ModelConfig, delta: RecurrentSpec, attends: list[bool], *, gated: bool
) -> ModelConfig:
    """found: the model with attention in all layers. attends: of each layer, whether it has it."""
    layers = []
    for number, each in enumerate(attends):
        layer = found.layer(number)
        attention = replace(layer.attention, head_gate=gated)
        layers.append(replace(layer, attention=attention, recurrent=None if each else delta))
    return replace(found, layers=hub.shared(layers))


OF_DELTA = {
    "q_proj": "in_proj_q",
    "k_proj": "in_proj_k",
    "v_proj": "in_proj_v",
    "q_conv1d": "q_conv",
    "k_conv1d": "k_conv",
    "v_conv1d": "v_conv",
    "f_proj": "in_proj_a",
    "g_proj": "in_proj_z",
    "b_proj": "in_proj_b",
    "A_log": "A_log",
    "dt_bias": "dt_bias",
    "o_norm": "norm",
    "o_proj": "out_proj",
}
BAILING_MOE_V3 = Family(
    "bailing_moe_v3",
    ("BailingMoeV3ForCausalLM",),
    "Ling 3",
    _hub,
    hub_names=TensorNames(
        {
            **{
                theirs.replace("self_attn.", "attention."): ours
                for theirs, ours in LATENT.modules.items()
                if theirs.startswith("self_attn.")
            },
            **BAILING.modules,
            "attention.q_a_proj": "self_attn.q_a_proj",
            "attention.q_proj": "self_attn.q_proj",
            "attention.kv_b_proj": "self_attn.kv_b_proj",
            "attention.g_proj": "self_attn.head_gates",
        },
        in_recurrent={
            f"attention.{theirs}": f"recurrent.{ours}" for theirs, ours in OF_DELTA.items()
        },
        layers_for_drafts=True,
        pairs_adjacent=True,
    ),
)
