"""Families with recurrent layers: config.json as well-known models have it, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import UnsupportedModel
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.served import GGUF_ARCHITECTURES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import MAX_STATE_TOKENS, kv_groups
from penstock.model.mechanisms import (
    EXPERTS,
    GATED_DELTA,
    MAMBA1,
    MAMBA2,
    NO_ROTATION,
    ONE_HALF,
    OUTPUT_GATE,
    SHORT_CONV,
    mechanisms,
)
from penstock.model.recurrent_spec import (
    GatedDeltaSpec,
    Mamba1Spec,
    Mamba2Spec,
    ShortConvSpec,
    state_numbers,
)
from penstock.prepare.checkpoint import check_config
from penstock.prepare.hub_config import read_config
from tests.shared.families.release_configs import releases

CONFIGS = releases("recurrent")


def read(model: str, **change: Any) -> ModelConfig:
    values = CONFIGS[model]
    if "text_config" in values:
        return read_config(Fields(values | {"text_config": values["text_config"] | change}, model))
    return read_config(Fields(values | change, model))


@pytest.mark.parametrize(
    ("model", "needs", "recurrent", "attending", "inner"),
    [
        ("lfm2-1.2b", {SHORT_CONV}, 10, 6, 8192),
        ("qwen3-next-80b", {GATED_DELTA, OUTPUT_GATE}, 36, 12, 5120),
        ("qwen3.5-27b", {GATED_DELTA, OUTPUT_GATE}, 48, 16, 17408),
        ("granite-4.0-h-1b", {MAMBA2}, 36, 4, 4096),
        ("nemotron-3-nano-30b", {MAMBA2, ONE_HALF}, 23, 7, 1856),
        ("mamba-codestral-7b", {MAMBA2, ONE_HALF}, 64, 0, 8192),
        ("jamba-v0.1", {MAMBA1, EXPERTS, NO_ROTATION}, 28, 4, 14336),
        ("mamba-130m", {MAMBA1, ONE_HALF}, 24, 0, 1536),
    ],
)
def test_well_known_models_are_read(
    model: str, needs: set[str], recurrent: int, attending: int, inner: int
) -> None:
    config = read(model)
    assert needs <= mechanisms(config)
    layers = [config.layer(number) for number in range(config.num_layers)]
    assert sum(layer.recurrent is not None for layer in layers) == recurrent
    assert sum(layer.attends for layer in layers) == attending
    assert config.intermediate_size == inner
    assert msgspec.json.decode(msgspec.json.encode(config), type=ModelConfig) == config


def test_numbers_of_a_state() -> None:
    """They are those of the shapes that the releases' own code keeps."""
    assert state_numbers(ShortConvSpec(width=2048, kernel=3)) == 2 * 2048
    next_spec = read("qwen3-next-80b").layers[0].recurrent
    assert isinstance(next_spec, GatedDeltaSpec)
    assert state_numbers(next_spec) == 3 * 8192 + 32 * 128 * 128
    nano = read("nemotron-3-nano-30b").layers[0].recurrent
    assert isinstance(nano, Mamba2Spec)
    assert state_numbers(nano) == 3 * 6144 + 64 * 64 * 128
    assert (nano.time_step_min, nano.time_step_max, nano.norm_groups) == (0.0, None, 8)
    codestral = read("mamba-codestral-7b")
    spec = codestral.layers[0].recurrent
    assert isinstance(spec, Mamba2Spec)
    assert state_numbers(spec) == 3 * 10240 + 128 * 64 * 128
    assert (spec.time_step_max, spec.norm_groups) == (None, 8)
    jamba = read("jamba-v0.1")
    assert jamba.max_position == 262144
    assert [layer.feed_forward.experts is not None for layer in jamba.layers] == [False, True] * 16
    first = jamba.layers[0].recurrent
    assert isinstance(first, Mamba1Spec)
    assert state_numbers(first) == 3 * 8192 + 8192 * 16
    assert (first.rank, first.norms, first.norm_eps) == (256, "weighed", 1e-6)
    *_, states = kv_groups(codestral, 2, codestral.max_position, 16)
    assert states.every == MAX_STATE_TOKENS
    assert 256 < states.blocks < 2048, "copies of large states lie in large blocks"


@pytest.mark.parametrize(
    ("model", "change", "said"),
    [
        ("lfm2-1.2b", {"conv_L_cache": 1}, "kernel is 1; 2 to 64"),
        ("lfm2-1.2b", {"conv_dim": 4096}, "conv_dim is 4096"),
        ("lfm2-1.2b", {"block_use_swiglu": False}, "block_use_swiglu is False"),
        ("lfm2-1.2b", {"block_multiple_of": 0}, "block_multiple_of is 0"),
        ("lfm2-1.2b", {"layer_types": ["mlp"] * 16}, "full_attention, conv are served"),
        ("lfm2-1.2b", {"layer_types": ["conv"]}, "names 1 layers"),
        ("lfm2-1.2b", {"block_ffn_dim_multiplier": 1e300}, "intermediate_size is"),
        ("qwen3-next-80b", {"linear_num_key_heads": 5}, "32 value heads can't share 5"),
        ("qwen3-next-80b", {"linear_num_key_heads": 0}, "key_heads is 0"),
        ("qwen3-next-80b", {"linear_value_head_dim": 1 << 19}, "a recurrent layer's state has"),
        ("qwen3-next-80b", {"full_attention_interval": 0}, "full_attention_interval is 0"),
        ("qwen3-next-80b", {"partial_rotary_factor": 0.0}, "makes 0 numbers"),
        ("qwen3.5-27b", {"attn_output_gate": False}, "attn_output_gate is False"),
        ("qwen3.5-27b", {"output_gate_type": "sigmoid"}, "output_gate_type is 'sigmoid'"),
        ("granite-4.0-h-1b", {"mamba_n_heads": 0}, "0 Mamba heads"),
        ("granite-4.0-h-1b", {"mamba_d_head": 32}, "48 Mamba heads of 32"),
        ("granite-4.0-h-1b", {"mamba_n_groups": 7}, "48 heads in 7 groups"),
        ("granite-4.0-h-1b", {"time_step_limit": [0.5, 0.1]}, "from 0.5 to 0.1"),
        ("granite-4.0-h-1b", {"time_step_limit": [float("nan"), 1]}, "a finite number"),
        ("granite-4.0-h-1b", {"time_step_limit": "x"}, "a list of two numbers"),
        ("granite-4.0-h-1b", {"position_embedding_type": "alibi"}, "nope and rope are served"),
        ("granite-4.0-h-1b", {"normalization_function": "layernorm"}, "'layernorm'"),
        ("nemotron-3-nano-30b", {"hybrid_override_pattern": "MX"}, "has 'X'"),
        ("nemotron-3-nano-30b", {"hybrid_override_pattern": ""}, "0 layers are described"),
        ("nemotron-3-nano-30b", {"num_hidden_layers": 50}, "50"),
        ("nemotron-3-nano-30b", {"n_groups": 0}, "groups is 0"),
        ("nemotron-3-nano-30b", {"topk_group": 3}, "can't be chosen from 3 of 1 groups"),
        ("nemotron-3-nano-30b", {"moe_latent_size": -8}, "latent dimension is -8"),
        ("nemotron-3-nano-30b", {"mlp_bias": True}, "mlp_bias is True; False is"),
        ("nemotron-3-nano-30b", {"mlp_hidden_act": "silu"}, "relu2 is"),
        ("mamba-codestral-7b", {"head_dim": 32}, "128 Mamba heads of 32 don't make up 2 times"),
        ("mamba-codestral-7b", {"n_groups": 3}, "128 heads in 3 groups"),
        ("mamba-codestral-7b", {"rms_norm": False}, "rms_norm is False"),
        ("mamba-codestral-7b", {"hidden_act": "gelu"}, "silu is"),
        ("mamba-codestral-7b", {"num_hidden_layers": 0}, "num_layers is 0"),
        ("jamba-v0.1", {"attn_layer_offset": 8}, "attn_layer_offset is 8; a number from 0"),
        ("jamba-v0.1", {"expert_layer_period": 0}, "expert_layer_offset is 1"),
        ("jamba-v0.1", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms is False"),
        ("jamba-v0.1", {"mamba_dt_rank": 0}, "rank is 0; 1 to"),
        ("jamba-v0.1", {"num_experts_per_tok": 17}, "num_experts_per_tok is 17"),
        ("mamba-130m", {"state_size": 1 << 30}, "state is"),
        ("mamba-130m", {"ssm_cfg": {"layer": "Mamba2"}}, "ssm_cfg is"),
    ],
)
def test_other_variants_of_recurrent_models_are_refused(
    model: str, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read(model, **change)


GGUF_FILES: dict[str, dict[str, Any]] = {
    "lfm2": {
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 2, 0],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "block_count": 3,
        "context_length": 128,
        "embedding_length": 32,
        "feed_forward_length": 48,
        "shortconv.l_cache": 3,
    },
    "nemotron_h": {
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 2, 0, 0],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "block_count": 4,
        "context_length": 128,
        "embedding_length": 32,
        "feed_forward_length": [0, 0, 48, 0],
        "nextn_predict_layers": 1,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 2,
        "ssm.inner_size": 32,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 4,
    },
    "mamba2": {
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "block_count": 2,
        "context_length": 1 << 20,
        "embedding_length": 32,
        "feed_forward_length": 0,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 2,
        "ssm.inner_size": 64,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 4,
    },
    "kimi-linear": {
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 0, 1],
        "attention.key_length": 48,
        "attention.key_length_mla": 28,
        "attention.kv_lora_rank": 32,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.value_length_mla": 16,
        "block_count": 3,
        "context_length": 128,
        "embedding_length": 32,
        "expert_count": 4,
        "expert_feed_forward_length": 24,
        "expert_gating_func": 2,
        "expert_used_count": 2,
        "feed_forward_length": 48,
        "kda.head_dim": 16,
        "leading_dense_block_count": 1,
        "rope.dimension_count": 16,
        "ssm.conv_kernel": 4,
    },
    "qwen35": {
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "block_count": 4,
        "context_length": 128,
        "embedding_length": 32,
        "feed_forward_length": 48,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 2,
        "ssm.inner_size": 32,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 4,
    },
}


def read_gguf(name: str, **change: Any) -> ModelConfig:
    keys = Fields(GGUF_FILES[name] | {key.replace("__", "."): change[key] for key in change}, name)
    reader = GGUF_ARCHITECTURES[name].read_gguf
    assert reader is not None
    config = reader(GGUFMetadata(keys, (), 64))
    check_config(config, name)
    return config


def test_layers_of_gguf_files() -> None:
    lfm2 = read_gguf("lfm2")
    assert [layer.attends for layer in lfm2.layers] == [False, True, False]
    assert (lfm2.num_kv_heads, lfm2.intermediate_size) == (2, 48)
    nemotron = read_gguf("nemotron_h")
    assert [layer.halves for layer in nemotron.layers] == ["mixer", "mixer", "feed_forward"]
    assert [layer.attends for layer in nemotron.layers] == [False, True, False]
    mamba = read_gguf("mamba2")
    assert (mamba.intermediate_size, mamba.layer(1).halves) == (64, "mixer")
    kimi = read_gguf("kimi-linear")
    assert [layer.attends for layer in kimi.layers] == [False, False, True]
    assert [layer.feed_forward.experts is None for layer in kimi.layers] == [True, False, False]
    qwen = read_gguf("qwen35")
    assert [layer.attends for layer in qwen.layers] == [False, False, False, True]
    delta = qwen.layers[0].recurrent
    assert isinstance(delta, GatedDeltaSpec)
    assert delta.tiled


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("lfm2", {"attention__head_count_kv": [0, 2]}, "has 2 numbers for 3 layers"),
        ("lfm2", {"attention__head_count_kv": [0, 2, 4]}, "head_count_kv is 2, 4"),
        ("lfm2", {"attention__head_count_kv": [0, 0, 0]}, "head_count_kv is 0"),
        ("lfm2", {"attention__head_count_kv": [0, "x", 0]}, "a whole number"),
        ("lfm2", {"attention__head_count_kv": [0, -2, 0]}, "num_kv_heads is -2"),
        ("lfm2", {"shortconv__l_cache": 1 << 30}, "kernel is"),
        ("nemotron_h", {"feed_forward_length": [0, 48, 40, 0]}, "feed_forward_length is 40, 48"),
        ("nemotron_h", {"nextn_predict_layers": 4}, "0 to 3 are allowed"),
        ("nemotron_h", {"ssm__time_step_rank": 5}, "5 Mamba heads don't make up"),
        ("nemotron_h", {"ssm__time_step_rank": 0}, "0 Mamba heads"),
        ("nemotron_h", {"ssm__state_size": 1 << 40}, "state is"),
        ("mamba2", {"ssm__time_step_rank": 0}, "0 Mamba heads"),
        ("mamba2", {"ssm__group_count": 3}, "4 heads in 3 groups"),
        ("mamba2", {"block_count": 0}, "num_layers is 0"),
        ("kimi-linear", {"attention__head_count_kv": [0, 1]}, "has 2 numbers for 3 layers"),
        ("kimi-linear", {"kda__head_dim": 0}, "key_heads is|key_dim is 0"),
        ("kimi-linear", {"ssm__conv_kernel": None}, "ssm.conv_kernel is missing"),
        ("kimi-linear", {"attention__value_length_mla": None}, "value_length_mla is missing"),
        ("kimi-linear", {"expert_gating_func": 3}, "expert_gating_func is 3"),
        ("qwen35", {"ssm__group_count": 3}, "4 value heads can't share 3"),
        ("qwen35", {"ssm__inner_size": 33}, "4 value heads don't make up"),
        ("qwen35", {"full_attention_interval": -1}, "full_attention_interval is -1"),
    ],
)
def test_other_gguf_files_are_refused(name: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read_gguf(name, **change)
