"""config.json of newer models, written from memory: no release's file could be had."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.recurrent_spec import Mamba2Spec
from penstock.prepare.hub_config import read_config

LAGUNA: dict[str, Any] = {
    "architectures": ["LagunaForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "gating": True,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 10,
    "max_position_embeddings": 131072,
    "mlp_layer_types": ["dense"] + ["sparse"] * 39,
    "mlp_only_layers": [0],
    "model_type": "laguna",
    "moe_apply_router_weight_on_input": False,
    "moe_intermediate_size": 512,
    "moe_routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "num_attention_heads": 48,
    "num_attention_heads_per_layer": ([48] + [64] * 3) * 10,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {
            "beta_fast": 64.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 0.5,
            "rope_theta": 500000.0,
            "rope_type": "yarn",
        },
        "original_max_position_embeddings": 4096,
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "shared_expert_intermediate_size": 512,
    "sliding_window": 512,
    "vocab_size": 100352,
}
MISTRAL4: dict[str, Any] = {
    "architectures": ["Mistral4ForCausalLM"],
    "first_k_dense_replace": 0,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "kv_lora_rank": 256,
    "max_position_embeddings": 1048576,
    "model_type": "mistral4",
    "moe_intermediate_size": 2048,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 32,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 128.0,
        "llama_4_scaling_beta": 0.1,
        "max_position_embeddings": 1048576,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 8192,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "type": "yarn",
    },
    "topk_group": 1,
    "v_head_dim": 128,
    "vocab_size": 131072,
}
BAMBA: dict[str, Any] = {
    "architectures": ["BambaForCausalLM"],
    "attn_layer_indices": [9, 18, 27],
    "attn_rotary_emb": 64,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "mamba_proj_bias": False,
    "max_position_embeddings": 4096,
    "model_type": "bamba",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


def test_lagunas_layers_have_heads_and_rotations_of_their_own() -> None:
    config = read_config(Fields(LAGUNA, "laguna"))
    assert [config.query_heads(number) for number in range(5)] == [48, 64, 64, 64, 48]
    assert [config.layer(number).attention.window for number in (0, 1)] == [None, 512]
    assert [rope.dims for rope in config.ropes] == [64, 128]
    assert [rope.scaling is None for rope in config.ropes] == [False, True]
    assert config.layer(0).feed_forward.experts is None
    assert config.layer(1).feed_forward.experts is not None


def test_queries_of_mistral_small_4_grow_after_its_first_context() -> None:
    config = read_config(Fields(MISTRAL4, "mistral4"))
    (rope,) = config.ropes
    assert (rope.dims, rope.query_growth, rope.query_growth_length) == (64, 0.1, 8192)
    assert (config.num_kv_heads, config.head_dim) == (1, 320)
    plain = {key: value for key, value in MISTRAL4.items() if key != "rope_parameters"}
    assert read_config(Fields(plain, "mistral4")).ropes == (rope,)


def test_three_of_bambas_layers_attend() -> None:
    config = read_config(Fields(BAMBA, "bamba"))
    mixing = [layer.recurrent for layer in config.layers]
    assert [at for at, spec in enumerate(mixing) if spec is None] == [9, 18, 27]
    assert isinstance(mixing[0], Mamba2Spec)
    assert (mixing[0].heads, mixing[0].state, config.ropes[0].dims) == (128, 128, 64)


@pytest.mark.parametrize(
    ("settings", "change", "said"),
    [
        (LAGUNA, {"gating": "per-element"}, "gating is 'per-element'; 'per-head' is needed"),
        (LAGUNA, {"gating": False}, "gating is False"),
        (LAGUNA, {"gating_types": ["per_element"] * 40}, "gating_types"),
        (LAGUNA, {"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping is 30"),
        (LAGUNA, {"moe_apply_router_weight_on_input": True}, "moe_apply_router_weight_on_input"),
        (LAGUNA, {"num_attention_heads_per_layer": [48] * 39}, "a list of 40 multiples of 8"),
        (LAGUNA, {"num_attention_heads_per_layer": [12] * 40}, "a list of 40 multiples of 8"),
        (LAGUNA, {"rope_parameters": {"rope_type": "default"}}, "full_attention is None; an obje"),
        (MISTRAL4, {"n_group": 7}, "128 experts can't be chosen from 1 of 7 groups"),
        (MISTRAL4, {"qk_rope_head_dim": 32}, "partial_rotary_factor is 0.5; 32 / 96"),
        (MISTRAL4, {"rope_interleave": False}, "rope_interleave is False"),
        (BAMBA, {"attn_rotary_emb": 128}, "attn_rotary_emb is 128"),
        (BAMBA, {"attn_layer_indices": [32]}, "attn_layer_indices is .32.; a list of numbers"),
        (BAMBA, {"mamba_d_head": 32}, "128 Mamba heads of 32 don't make up the inner size 8192"),
    ],
)
def test_other_variants_are_refused(
    settings: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read_config(Fields(settings | change, "config.json"))
