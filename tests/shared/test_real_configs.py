"""config.json as well-known models have it: each is read, unknown settings and all."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.mechanisms import mechanisms
from penstock.prepare.hub_config import read_config

USUAL = {"torch_dtype": "bfloat16", "transformers_version": "4.46.0", "use_cache": True}
GEMMA4 = {
    "attention_bias": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "model_type": "gemma4_text",
    "num_attention_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 512,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}
WHISPER = {
    "activation_dropout": 0.0,
    "activation_function": "gelu",
    "apply_spec_augment": False,
    "architectures": ["WhisperForConditionalGeneration"],
    "attention_dropout": 0.0,
    "begin_suppress_tokens": [220, 50257],
    "bos_token_id": 50257,
    "classifier_proj_size": 256,
    "decoder_layerdrop": 0.0,
    "decoder_start_token_id": 50258,
    "dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "eos_token_id": 50257,
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "mask_feature_length": 10,
    "mask_feature_min_masks": 0,
    "mask_feature_prob": 0.0,
    "mask_time_length": 10,
    "mask_time_min_masks": 2,
    "mask_time_prob": 0.05,
    "max_length": 448,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "median_filter_width": 7,
    "model_type": "whisper",
    "pad_token_id": 50257,
    "scale_embedding": False,
    "use_weighted_layer_sum": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "whisper-tiny.en": WHISPER
    | {
        "d_model": 384,
        "decoder_attention_heads": 6,
        "decoder_ffn_dim": 1536,
        "decoder_layers": 4,
        "encoder_attention_heads": 6,
        "encoder_ffn_dim": 1536,
        "encoder_layers": 4,
        "forced_decoder_ids": [[1, 50362]],
        "num_hidden_layers": 4,
        "num_mel_bins": 80,
        "suppress_tokens": [1, 2, 7],
        "vocab_size": 51864,
    },
    "whisper-large-v3-turbo": WHISPER
    | {
        "d_model": 1280,
        "decoder_attention_heads": 20,
        "decoder_ffn_dim": 5120,
        "decoder_layers": 4,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "encoder_layers": 32,
        "num_hidden_layers": 32,
        "num_mel_bins": 128,
        "vocab_size": 51866,
    },
    "gemma-2-2b": {
        "architectures": ["Gemma2ForCausalLM"],
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "sliding_window_size": 4096,
        "vocab_size": 256000,
    },
    "gemma-3-4b": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "image_token_index": 262144,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
    "gemma-3n-e2b": {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "audio_config": {"hidden_size": 1536},
        "audio_soft_tokens_per_image": 188,
        "model_type": "gemma3n",
        "text_config": {
            "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20,
            "altup_active_idx": 0,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_lr_multiplier": 1.0,
            "altup_num_inputs": 4,
            "attention_bias": False,
            "final_logit_softcapping": 30.0,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 2048,
            "hidden_size_per_layer_input": 256,
            "intermediate_size": [8192] * 30,
            "laurel_rank": 64,
            "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 6,
            "max_position_embeddings": 32768,
            "model_type": "gemma3n_text",
            "num_attention_heads": 8,
            "num_hidden_layers": 30,
            "num_key_value_heads": 2,
            "num_kv_shared_layers": 10,
            "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "sliding_window": 512,
            "vocab_size": 262400,
            "vocab_size_per_layer_input": 262144,
        },
        "vision_config": {"hidden_size": 2048},
    },
    "gemma-4-e2b": {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "audio_config": {"hidden_size": 1024},
        "model_type": "gemma4",
        "text_config": GEMMA4
        | {
            "attention_k_eq_v": False,
            "enable_moe_block": False,
            "hidden_size": 1536,
            "hidden_size_per_layer_input": 256,
            "intermediate_size": 6144,
            "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
            "num_global_key_value_heads": None,
            "num_hidden_layers": 35,
            "num_key_value_heads": 1,
            "num_kv_shared_layers": 20,
            "use_bidirectional_attention": None,
            "use_double_wide_mlp": True,
        },
        "tie_word_embeddings": True,
        "vision_config": {"hidden_size": 768},
    },
    "gemma-4-26b-a4b": {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "audio_config": None,
        "model_type": "gemma4",
        "text_config": GEMMA4
        | {
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "hidden_size": 2816,
            "hidden_size_per_layer_input": None,
            "intermediate_size": 2112,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
            "moe_intermediate_size": 704,
            "num_attention_heads": 16,
            "num_experts": 128,
            "num_global_key_value_heads": 2,
            "num_hidden_layers": 30,
            "num_key_value_heads": 8,
            "num_kv_shared_layers": 0,
            "sliding_window": 1024,
            "top_k_experts": 8,
            "use_bidirectional_attention": "vision",
            "use_double_wide_mlp": False,
        },
        "vision_config": {"head_dim": 72, "hidden_size": 1152, "num_attention_heads": 16},
    },
    "phi-4-mini": {
        "architectures": ["Phi3ForCausalLM"],
        "attention_bias": False,
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
        "embd_pdrop": 0.0,
        "full_attn_mod": 1,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 24,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "long_factor": [1.0] * 48,
            "short_factor": [1.0] * 48,
            "type": "longrope",
        },
        "rope_theta": 10000.0,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
        "vocab_size": 200064,
    },
    "command-r7b": {
        "architectures": ["Cohere2ForCausalLM"],
        "attention_bias": False,
        "cache_implementation": "hybrid",
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "layer_norm_eps": 1e-05,
        "layer_switch": 4,
        "logit_scale": 0.25,
        "max_position_embeddings": 8192,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rope_scaling": None,
        "rope_theta": 50000,
        "rotary_pct": 1.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": True,
        "vocab_size": 256000,
    },
    "qwen2.5": {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 21,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "glm-4.5-air": {
        "architectures": ["Glm4MoeForCausalLM"],
        "attention_bias": True,
        "eos_token_id": [151329, 151336, 151338],
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 46,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "use_qk_norm": False,
        "vocab_size": 151552,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "eos_token_id": 200002,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "output_router_logits": False,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "attention_bias": False,
        "auto_map": {},
        "aux_loss_alpha": 0.001,
        "eos_token_id": 100001,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "model_type": "deepseek_v2",
        "moe_intermediate_size": 1408,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "pretraining_tp": 1,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "seq_aux": True,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 128,
        "vocab_size": 102400,
    },
    "deepseek-v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "auto_map": {},
        "aux_loss_alpha": 0.001,
        "eos_token_id": 1,
        "ep_size": 1,
        "first_k_dense_replace": 3,
        "hidden_act": "silu",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1,
        "pretraining_tp": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "seq_aux": True,
        "tie_word_embeddings": False,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "v_head_dim": 128,
        "vocab_size": 129280,
    },
    "glm-4.7-flash": {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "attention_bias": False,
        "eos_token_id": [154820],
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 10240,
        "kv_lora_rank": 512,
        "max_position_embeddings": 202752,
        "model_type": "glm4_moe_lite",
        "moe_intermediate_size": 1536,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 20,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 47,
        "num_key_value_heads": 20,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 1.0,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.8,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": 256,
        "vocab_size": 154880,
    },
    "minimax-m2": {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "attn_type_list": [1] * 62,
        "auto_map": {"AutoConfig": "configuration_minimax_m2.MiniMaxM2Config"},
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "max_position_embeddings": 196608,
        "model_type": "minimax_m2",
        "mtp_transformer_layers": 1,
        "num_attention_heads": 48,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 62,
        "num_key_value_heads": 8,
        "num_local_experts": 256,
        "num_mtp_modules": 3,
        "qk_norm_type": "per_layer",
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "float8_e4m3fn",
            "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        "rms_norm_eps": 1e-06,
        "rope_theta": 5000000,
        "rotary_dim": 64,
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "tie_word_embeddings": False,
        "use_mtp": True,
        "use_qk_norm": True,
        "use_routing_bias": True,
        "vocab_size": 200064,
    },
}


@pytest.mark.parametrize("model", CONFIGS)
def test_it_is_read(model: str) -> None:
    config = read_config(Fields(USUAL | CONFIGS[model], model))
    assert len(config.layers) in (1, config.num_layers)
    assert mechanisms(config) or model == "qwen2.5"


def test_whispers_decoder_stands_behind_half_a_minute_of_sound() -> None:
    config = read_config(Fields(USUAL | CONFIGS["whisper-large-v3-turbo"], "whisper"))
    assert (config.num_layers, config.encoder_rows, config.max_position) == (4, 1500, 1948)
    assert config.audio is not None
    assert (config.audio.tower.num_layers, config.audio.tower.mel_bins) == (32, 128)
    assert config.tie_word_embeddings


def test_what_a_release_leaves_out_is_transformers_default() -> None:
    config = read_config(Fields(CONFIGS["gemma-3-4b"], "gemma-3-4b"))
    assert (config.vocab_size, config.num_heads, config.head_dim) == (262_208, 8, 256)
    assert [layer.attention.window for layer in config.layers[:6]] == [1024] * 5 + [None]
    assert config.ropes[0].scaling is not None
    assert config.ropes[1].scaling is None


def test_gemma_4s_layers_differ_by_what_they_see() -> None:
    small = read_config(Fields(CONFIGS["gemma-4-e2b"], "gemma-4-e2b"))
    assert [small.kv_heads(number).size for number in range(3, 6)] == [256, 512, 256]
    assert [small.layer(number).attention.reads for number in (14, 15, 19)] == [None, 13, 14]
    assert [small.inner(number) for number in (14, 15)] == [6144, 12_288]
    large = read_config(Fields(CONFIGS["gemma-4-26b-a4b"], "gemma-4-26b-a4b"))
    heads = [large.kv_heads(number) for number in (4, 5)]
    assert [(each.count, each.size) for each in heads] == [(8, 256), (2, 512)]
    assert large.per_layer_inputs is None  # a null
    assert large.ropes[0].scaling is not None
    assert (large.ropes[0].dims, large.ropes[0].scaling.kept) == (512, 64)


def test_gemma_4_as_transformers_5_writes_it() -> None:
    """Heads stand at each layer, by numbers of two digits."""
    text = CONFIGS["gemma-4-26b-a4b"]["text_config"]
    old = {key: value for key, value in text.items() if "global" not in key}
    heads = {
        f"{number:02}": {"head_dim": 512, "num_key_value_heads": 2} for number in range(5, 30, 6)
    }
    wrapped = CONFIGS["gemma-4-26b-a4b"]
    config = read_config(Fields(wrapped | {"text_config": old | {"per_layer_config": heads}}, ""))
    assert config == read_config(Fields(wrapped, ""))
    heads["04"] = heads["05"]
    with pytest.raises(UnsupportedModel, match="per_layer_config"):
        read_config(Fields(wrapped | {"text_config": old | {"per_layer_config": heads}}, ""))


def test_positions_stretched_by_yarn_sharpen_scores_over_latents() -> None:
    """The figures are those of the releases' own code."""
    v3 = read_config(Fields(CONFIGS["deepseek-v3"], "deepseek-v3"))
    assert v3.layers[0].attention.scale == pytest.approx(0.13523377886)
    assert v3.ropes[0].scaling is not None
    assert v3.ropes[0].scaling.attention_factor == 1.0
    flash = read_config(Fields(CONFIGS["glm-4.7-flash"], "glm-4.7-flash"))
    assert flash.layers[0].attention.scale == 256**-0.5
    assert (flash.num_kv_heads, flash.head_dim) == (1, 576)


def test_heads_rotate_in_part_where_a_config_counts_their_numbers() -> None:
    config = read_config(Fields(CONFIGS["minimax-m2"], "minimax-m2"))
    assert (config.head_dim, config.ropes[0].dims) == (128, 64)


@pytest.mark.parametrize(("head", "rotating"), [(44, 30), (90, 52), (128, 128), (128, 2), (86, 46)])
def test_as_many_numbers_rotate_as_a_config_counts(head: int, rotating: int) -> None:
    """Also where their share of the head, times its size, is a little less than their number."""
    change = {"head_dim": head, "rotary_dim": rotating}
    config = read_config(Fields(CONFIGS["minimax-m2"] | change, "minimax-m2"))
    assert config.ropes[0].dims == rotating


@pytest.mark.parametrize(
    ("model", "change", "said"),
    [
        ("whisper-tiny.en", {"scale_embedding": True}, "scale_embedding is True"),
        ("whisper-tiny.en", {"d_model": 385}, "6 attention heads don't divide d_model, 385"),
        ("whisper-tiny.en", {"max_source_positions": 1 << 20}, "1 to 65536 are allowed"),
        ("whisper-tiny.en", {"num_mel_bins": 0}, "num_mel_bins is 0"),
        ("deepseek-v2-lite", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'"),
        ("deepseek-v2-lite", {"norm_topk_prob": True}, "norm_topk_prob true"),
        ("deepseek-v3", {"rope_interleave": False}, "rope_interleave is False"),
        ("deepseek-v3", {"n_group": 7}, "8 of 256 experts can't be chosen from 4 of 7 groups"),
        ("deepseek-v3", {"kv_lora_rank": 1 << 40}, "1 to 65536 are allowed"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        (
            "gemma-4-e2b",
            {"text_config": GEMMA4 | {"hidden_size": 8, "intermediate_size": None}},
            "intermediate_size is missing",
        ),
        ("gpt-oss-20b", {"swiglu_limit": 6.0}, "swiglu_limit is 6"),
        ("minimax-m2", {"qk_norm_type": "per_head"}, "qk_norm_type is 'per_head'; 'per_layer' is"),
        ("minimax-m2", {"use_routing_bias": False}, "use_routing_bias is False; True is"),
        ("minimax-m2", {"shared_intermediate_size": 8}, "shared_intermediate_size is 8, which is"),
    ],
)
def test_other_variants_are_refused(model: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read_config(Fields(CONFIGS[model] | change, model))
