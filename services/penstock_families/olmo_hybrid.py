"""OLMo Hybrid: three of four layers are gated delta nets, with norms before each half, and the
others are OLMo 3's, with norms after each; these rotate only if config.json says so.

Source: OLMo team, "OLMo Hybrid", 2026; Grazzi et al., "Unlocking state-tracking in linear RNNs
through negative eigenvalues", 2024.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec, NormSpec
from penstock.model.recurrent_spec import GatedDeltaSpec, RecurrentSpec
from penstock.model.rope_spec import RopeSpec
from penstock_families.olmo2 import NAMES

OF_TRAINING = (
    "linear_a_log_min",
    "linear_a_log_max",
    "linear_dt_min",
    "linear_dt_max",
    "linear_dt_init_floor",
)
RESULT_EPS = 1e-5
"""Epsilon of the norm of what a delta net gives, whatever the model's is."""


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    fields.ignore(*OF_TRAINING)
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    delta, turns = _delta(fields, sizes["num_heads"], sizes["hidden_size"]), _turns(fields)
    if turns:
        rope = hub.rope(fields, sizes["head_dim"])
    else:
        fields.ignore("rope_parameters", "rope_scaling", "rope_theta")
        rope = RopeSpec(dims=sizes["head_dim"])
    attention = AttentionSpec(
        rope=0 if turns else None, norm="whole", qkv_bias=bias, output_bias=bias
    )
    attends = LayerSpec(attention=attention, order="post")
    recalls = LayerSpec(attention=attention, recurrent=delta)
    count = sizes["num_layers"]
    default = recurrent.every_nth(4, count, fields.where)
    if recurrent.FULL not in default:
        default[-1] = recurrent.FULL
    kinds = recurrent.layer_kinds(fields, count, default, recurrent.FULL, recurrent.LINEAR)
    return ModelConfig(
        architecture="olmo_hybrid",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(rope,),
        layers=hub.shared(attends if kind == recurrent.FULL else recalls for kind in kinds),
    )


def _turns(fields: Fields) -> bool:
    """Releases have no rotation: their base is null, which isn't the same as a missing one."""
    for each in (fields.section("rope_parameters"), fields):
        if "rope_theta" in each.values:
            return each.values["rope_theta"] is not None
    return True


def _delta(fields: Fields, heads: int, hidden: int) -> RecurrentSpec:
    key_heads = fields.integer("linear_num_key_heads", heads)
    size = fields.integer("linear_key_head_dim", 3 * hidden // (4 * max(key_heads, 1)))
    spec = GatedDeltaSpec(
        key_heads=key_heads,
        value_heads=fields.integer("linear_num_value_heads", heads),
        key_dim=size,
        value_dim=fields.integer("linear_value_head_dim", 2 * size),
        kernel=fields.integer("linear_conv_kernel_dim", 4),
        strongest=2.0 if fields.flag("linear_allow_neg_eigval", True) else 1.0,
        norm_eps=RESULT_EPS,
    )
    return recurrent.checked(spec, fields.where)


OLMO_HYBRID = Family(
    "olmo_hybrid",
    ("OlmoHybridForCausalLM",),
    "OLMo Hybrid",
    _hub,
    hub_names=TensorNames(
        {
            **NAMES.modules,
            "feedforward_layer_norm": "attention_output_norm",
            **{
                f"linear_attn.{theirs}": f"recurrent.{ours}"
                for theirs, ours in {
                    "q_proj": "in_proj_q",
                    "k_proj": "in_proj_k",
                    "v_proj": "in_proj_v",
                    "g_proj": "in_proj_z",
                    "b_proj": "in_proj_b",
                    "a_proj": "in_proj_a",
                    "q_conv1d": "q_conv",
                    "k_conv1d": "k_conv",
                    "v_conv1d": "v_conv",
                    "conv1d": "conv",
                    "A_log": "A_log",
                    "dt_bias": "dt_bias",
                    "o_norm": "norm",
                    "o_proj": "out_proj",
                }.items()
            },
        },
        in_recurrent={
            "attention_layer_norm": "input_layernorm",
            "feedforward_layer_norm": "post_attention_layernorm",
            "post_attention_layernorm": "post_attention_layernorm",
        },
    ),
)
