"""Kimi Linear and OLMo Hybrid: config.json as their releases are remembered to have it, and what is
refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.mechanisms import CHANNEL_DECAY, LATENT, NO_ROTATION, OVERSHOOTING, mechanisms
from penstock.model.recurrent_spec import GatedDeltaSpec, state_numbers
from penstock.prepare.hub_config import read_config

FULL = [4, 8, 12, 16, 20, 24, 27]
LINEAR = {
    "full_attn_layers": FULL,
    "head_dim": 128,
    "kda_layers": [number for number in range(1, 28) if number not in FULL],
    "num_heads": 32,
    "short_conv_kernel_size": 4,
}
KIMI = {
    "architectures": ["KimiLinearForCausalLM"],
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": LINEAR,
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}
OLMO = {
    "architectures": ["OlmoHybridForCausalLM"],
    "hidden_size": 3840,
    "intermediate_size": 11008,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
    "linear_allow_neg_eigval": True,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 96,
    "linear_num_key_heads": 30,
    "linear_num_value_heads": 30,
    "linear_value_head_dim": 192,
    "max_position_embeddings": 65536,
    "model_type": "olmo_hybrid",
    "num_attention_heads": 30,
    "num_hidden_layers": 32,
    "num_key_value_heads": 30,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": None, "rope_type": "default"},
    "vocab_size": 100352,
}


def read(values: dict[str, Any], **change: Any) -> ModelConfig:
    return read_config(Fields(values | change, "config.json"))


def test_kimi_linear_is_read() -> None:
    config = read(KIMI)
    assert {CHANNEL_DECAY, LATENT} <= mechanisms(config)
    attending = [number for number, layer in enumerate(config.layers, 1) if layer.attends]
    assert attending == FULL
    delta = config.layers[0].recurrent
    assert isinstance(delta, GatedDeltaSpec)
    assert state_numbers(delta) == 3 * 3 * 4096 + 32 * 128 * 128
    assert (delta.rank, delta.times, config.max_position) == (128, 4096, 1 << 20)
    experts = [layer.feed_forward.experts for layer in config.layers]
    assert experts[0] is None
    assert {each.count for each in experts[1:] if each is not None} == {256}
    assert config.layers[3].attention.scale == 192**-0.5


def test_olmo_hybrid_is_read() -> None:
    config = read(OLMO)
    assert {OVERSHOOTING, NO_ROTATION} <= mechanisms(config)
    delta = config.layers[0].recurrent
    assert isinstance(delta, GatedDeltaSpec)
    assert (delta.key_dim, delta.value_dim, delta.strongest) == (96, 192, 2.0)
    # transformers' defaults are the release's.
    sizes = ("layer_types", *(key for key in OLMO if key.startswith("linear_")))
    assert read({key: value for key, value in OLMO.items() if key not in sizes}) == config
    orders = [layer.order for layer in config.layers]
    assert orders == ["pre", "pre", "pre", "post"] * 8
    turning = read(OLMO, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    assert turning.layers[3].attention.rope == 0
    assert turning.ropes[0].theta == 500000.0
    assert read(OLMO, rope_parameters=None).ropes[0].theta == 10000.0


@pytest.mark.parametrize(
    ("values", "change", "said"),
    [
        (KIMI, {"mla_use_nope": False}, "mla_use_nope is False"),
        (KIMI, {"hidden_act": "situ"}, "hidden_act 'situ' is not served"),
        (KIMI, {"moe_router_activation_func": "softmax"}, "scoring_func is 'softmax'"),
        (KIMI, {"linear_attn_config": LINEAR | {"gate_lower_bound": -5.0}}, "gate_lower_bound"),
        (KIMI, {"linear_attn_config": LINEAR | {"kda_layers": [1]}}, "layers 1 to 27 once"),
        (KIMI, {"linear_attn_config": LINEAR | {"num_heads": 0}}, "key_heads is 0"),
        (OLMO, {"linear_num_key_heads": 7}, "30 value heads can't share 7"),
        (OLMO, {"layer_types": ["conv"] * 32}, "full_attention, linear_attention are served"),
    ],
)
def test_other_variants_are_refused(
    values: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read(values, **change)
