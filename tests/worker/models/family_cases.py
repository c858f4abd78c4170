"""Settings of tiny models of each family, for transformers' configuration classes."""

from __future__ import annotations

from typing import Any

from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.prepare.hub_config import read_config

SIZES = {
    "vocab_size": 199,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
QUARTER = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.25}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    "original_max_position_embeddings": 256,
}
GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
LLAMA4 = GROUPED | {
    "num_hidden_layers": 4,
    "intermediate_size": 36,  # twice that is the hidden size: no shape tells what is transposed
    "intermediate_size_mlp": 100,
    "num_local_experts": 5,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 21,
    "attn_scale": 0.4,
    "floor_scale": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "pad_token_id": 0,
}
LATENTS = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 40,
    "q_lora_rank": 28,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 20,
    "v_head_dim": 12,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 3,
    "pad_token_id": 0,
}
INDEX = {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "index_n_heads": 24,  # of few, a key has no score by any too often: ties
    "index_head_dim": 32,
    "index_topk": 7,
    "pad_token_id": None,  # its embedding is zero, and so are all its scores
}
ERNIE_EXPERTS = {
    "moe_num_experts": 6,
    "moe_k": 3,
    "moe_intermediate_size": 32,
    "tie_word_embeddings": False,
}
GEMMA4 = GROUPED | {
    "global_head_dim": 32,
    "sliding_window": 21,
    "vocab_size_per_layer_input": 199,
    "hidden_size_per_layer_input": 12,
}
GEMMA3N = GROUPED | {
    "hidden_size": 96,
    "sliding_window": 21,
    "vocab_size_per_layer_input": 199,
    "hidden_size_per_layer_input": 12,
    "laurel_rank": 8,
}
WHOLE = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}
"""Heads that make up the hidden size."""


def mixed(*kinds: str) -> list[str]:
    return [f"{kind}_attention" for kind in kinds]


MIMO_V2 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "v_head_dim": 20,
    "sliding_window": 21,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
        for kind, theta in (("full_attention", 1000.0), ("sliding_attention", 100.0))
    },
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-9-3": ("Llama", {"num_attention_heads": 9, "num_key_value_heads": 3}),
    "llama-5-1-wide-heads-biases": (
        "Llama",
        {
            "hidden_size": 75,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "head_dim": 26,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "llama-7-7-llama3-rope": (
        "Llama",
        {
            "hidden_size": 70,
            "num_attention_heads": 7,
            "num_key_value_heads": 7,
            "head_dim": 16,
            "rope_parameters": LLAMA3_ROPE,
        },
    ),
    "llama-6-2-linear-rope": (
        "Llama",
        {
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
        },
    ),
    "qwen2-9-3": ("Qwen2", {"num_attention_heads": 9, "num_key_value_heads": 3}),
    "qwen2-1-1-tied": (
        "Qwen2",
        {"num_attention_heads": 1, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "qwen3-5-1": ("Qwen3", {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 32}),
    "qwen3-7-7-tied-biases": (
        "Qwen3",
        {
            "num_attention_heads": 7,
            "num_key_value_heads": 7,
            "head_dim": 10,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "llama-yarn": ("Llama", GROUPED | {"rope_parameters": YARN}),
    "mistral-window": ("Mistral", GROUPED | {"sliding_window": 21}),
    "ministral-mixed": (
        "Ministral",
        GROUPED | {"sliding_window": 21, "layer_types": mixed("full", "sliding", "sliding")},
    ),
    "qwen2-window-behind": (
        "Qwen2",
        WHOLE | {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1},
    ),
    "gemma": ("Gemma", GROUPED),
    "gemma2": ("Gemma2", GROUPED | {"sliding_window": 21, "query_pre_attn_scalar": 24}),
    "gemma2-tight-caps": (
        "Gemma2",
        GROUPED
        | {"sliding_window": 64, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 12.0},
    ),
    "gemma3": (
        "Gemma3",
        GROUPED | {"sliding_window": 21, "layer_types": mixed("sliding", "sliding", "full")},
    ),
    "gemma3-stretched": (
        "Gemma3",
        GROUPED
        | {
            "sliding_window": 40,
            "layer_types": mixed("sliding", "full", "sliding"),
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma4-alike": (
        "Gemma4",
        GEMMA4
        | {
            "layer_types": mixed("sliding", "sliding", "full"),
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 20.0,
        },
    ),
    "gemma4-shared-kv": (
        "Gemma4",
        GEMMA4
        | {
            "num_hidden_layers": 5,
            "layer_types": mixed("sliding", "full", "sliding", "sliding", "full"),
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4-experts": (
        "Gemma4",
        GEMMA4
        | {
            "layer_types": mixed("sliding", "sliding", "full"),
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "gemma3n": (
        "Gemma3n",
        GEMMA3N
        | {
            "num_hidden_layers": 4,
            "layer_types": mixed("sliding", "full", "sliding", "full"),
            "num_kv_shared_layers": 2,
            "intermediate_size": [100, 100, 60, 100],
            "activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.0],
        },
    ),
    "gemma3n-three-streams": (
        "Gemma3n",
        GEMMA3N
        | {
            "num_hidden_layers": 2,
            "layer_types": mixed("sliding", "full"),
            "num_kv_shared_layers": 0,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "altup_correct_scale": False,
        },
    ),
    "phi3": ("Phi3", WHOLE | {"pad_token_id": 0}),
    "phi3-window": ("Phi3", WHOLE | {"sliding_window": 30, "pad_token_id": 0}),
    "phi4-mini-partial-longrope": (
        "Phi3",
        WHOLE
        | {
            "pad_token_id": 0,
            "original_max_position_embeddings": 256,
            "rope_parameters": LONGROPE,
        },
    ),
    "llama4": ("Llama4", LLAMA4),
    "llama4-plain": (
        "Llama4",
        LLAMA4
        | {
            "num_hidden_layers": 3,
            "moe_layers": [0, 2],
            "no_rope_layers": [1, 0, 1],
            "attn_temperature_tuning": False,
            "use_qk_norm": False,
            "num_experts_per_tok": 2,
            "rope_parameters": LLAMA3_ROPE | {"high_freq_factor": 1.0},
        },
    ),
    "smollm3": ("SmolLM3", WHOLE | {"num_hidden_layers": 4, "pad_token_id": 0}),
    "smollm3-own-pattern": ("SmolLM3", WHOLE | {"no_rope_layers": [0, 1, 0], "pad_token_id": 0}),
    "olmo2": ("Olmo2", WHOLE),
    "olmo3": (
        "Olmo3",
        WHOLE
        | {
            "num_hidden_layers": 4,
            "sliding_window": 21,
            "rope_parameters": {
                "full_attention": YARN | {"rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "granite": (
        "Granite",
        WHOLE
        | {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
    ),
    "granite4-without-mamba": (
        "GraniteMoeHybrid",
        WHOLE
        | {
            "layer_types": mixed("full", "full", "full"),
            "num_local_experts": 0,
            "shared_intermediate_size": 100,
            "position_embedding_type": "rope",
            "mamba_n_heads": 8,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
    ),
    "granite-biases": ("Granite", WHOLE | {"attention_bias": True, "mlp_bias": True}),
    "glm": ("Glm", GROUPED | {"pad_token_id": 0}),
    "glm4": ("Glm4", GROUPED | {"pad_token_id": 0}),
    "glm4-a-quarter": (
        "Glm4",
        GROUPED | {"pad_token_id": 0, "attention_bias": False, "rope_parameters": QUARTER},
    ),
    "cohere": ("Cohere", WHOLE | {"logit_scale": 0.5}),
    "cohere2": (
        "Cohere2",
        WHOLE | {"num_hidden_layers": 4, "sliding_window": 21, "logit_scale": 0.5},
    ),
    "nemotron": ("Nemotron", GROUPED | {"attention_bias": True, "mlp_bias": True}),
    "nemotron-h-latents": (
        "NemotronH",
        GROUPED
        | {
            "layers_block_type": ["full_attention", "moe", "mlp", "moe"],
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "moe_latent_size": 56,
            "moe_shared_expert_intermediate_size": 48,
            "routed_scaling_factor": 2.5,
        },
    ),
    "starcoder2": ("Starcoder2", WHOLE | {"sliding_window": 21}),
    "stablelm": ("StableLm", WHOLE | {"use_qkv_bias": True, "rope_parameters": QUARTER}),
    "stablelm-parallel": (
        "StableLm",
        WHOLE | {"use_parallel_residual": True, "rope_parameters": QUARTER},
    ),
    "mixtral": (
        "Mixtral",
        GROUPED | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 21},
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        GROUPED
        | {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-raw-weights": (
        "Qwen3Moe",
        GROUPED | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
    "olmoe": ("Olmoe", WHOLE | {"num_experts": 6, "num_experts_per_tok": 3}),
    "granite-moe": (
        "GraniteMoe",
        WHOLE
        | {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
        },
    ),
    "granite-moe-shared-expert": (
        "GraniteMoeShared",
        WHOLE
        | {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 56,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
        },
    ),
    "glm45": (
        "Glm4Moe",
        GROUPED
        | {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "glm45-groups": (
        "Glm4Moe",
        GROUPED
        | {
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        WHOLE
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 56,
        },
    ),
    "ministral3": (
        "Ministral3",
        GROUPED
        | {
            "rope_parameters": YARN
            | {"llama_4_scaling_beta": 0.4, "mscale": 1.0, "mscale_all_dim": 1.0}
        },
    ),
    "exaone4": ("Exaone4", WHOLE | {"sliding_window": None, "layer_types": mixed(*["full"] * 3)}),
    "exaone4-windows": ("Exaone4", WHOLE | {"num_hidden_layers": 4, "sliding_window": 21}),
    "ernie45": ("Ernie4_5", GROUPED | {"use_bias": True}),
    "ernie45-moe": ("Ernie4_5_Moe", WHOLE | ERNIE_EXPERTS),
    "exaone-moe": (
        "ExaoneMoe",
        GROUPED
        | {
            "num_hidden_layers": 4,
            "sliding_window": 21,
            "num_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "num_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "dots1": (
        "Dots1",
        GROUPED
        | {
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "sliding_window": 21,
            "max_window_layers": 2,
        },
    ),
    "solar-open": (
        "SolarOpen",
        GROUPED
        | {
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "cwm": (
        "Cwm",
        GROUPED | {"num_hidden_layers": 4, "sliding_window": 21, "rope_parameters": LLAMA3_ROPE},
    ),
    "hy-v3": (
        "HYV3",
        GROUPED | {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32},
    ),
    "gpt-oss": (
        "GptOss",
        GROUPED
        | {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 21,
            "rope_parameters": YARN | {"truncate": False},
        },
    ),
    "deepseek-v2-lite": (
        "DeepseekV2",
        LATENTS
        | {
            "q_lora_rank": None,
            "kv_lora_rank": 48,
            "qk_rope_head_dim": 16,
            "n_routed_experts": 6,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek-v2-groups": (
        "DeepseekV2",
        LATENTS
        | {
            "kv_lora_rank": 48,
            "qk_rope_head_dim": 16,
            "n_routed_experts": 12,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 4.0,
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        LATENTS
        | {
            "n_routed_experts": 12,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "attention_bias": True,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "mimo-v2-flash": (
        "MiMoV2Flash",
        MIMO_V2
        | {
            "num_key_value_heads": 2,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "n_group": 3,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    "mimo-v2-flash-even": (
        "MiMoV2Flash",
        MIMO_V2 | {"v_head_dim": 32, "attention_value_scale": 0.5},
    ),
    "minicpm3": (
        "MiniCPM3",
        LATENTS
        | {
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 24,
            "scale_emb": 3,
            "scale_depth": 0.9,
            "dim_model_base": 24,
            "rope_parameters": LONGROPE
            | {
                "partial_rotary_factor": 1.0,
                "factor": 1.0,
                "short_factor": [1.0 + each / 10 for each in range(8)],
                "long_factor": [2.0 + each for each in range(8)],
            },
        },
    ),
    "glm47-flash": (
        "Glm4MoeLite",
        LATENTS
        | {
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "n_routed_experts": 8,
            "routed_scaling_factor": 1.8,
        },
    ),
    "deepseek-v32": (
        "DeepseekV32",
        LATENTS
        | INDEX
        | {
            "n_routed_experts": 12,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm5": (
        "GlmMoeDsa",
        LATENTS | INDEX | {"n_routed_experts": 8, "first_k_dense_replace": 1},
    ),
    "glm5-shared-choices": (
        "GlmMoeDsa",
        LATENTS
        | INDEX
        | {
            "n_routed_experts": 8,
            "first_k_dense_replace": 1,
            "indexer_types": ["full", "shared", "full"],
        },
    ),
    "seed-oss": ("SeedOss", GROUPED | {"attention_bias": True, "attention_out_bias": True}),
    "minimax-m2": (
        "MiniMaxM2",
        GROUPED
        | {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "rope_parameters": QUARTER | {"partial_rotary_factor": 0.5},
        },
    ),
    "arcee": ("Arcee", WHOLE | {"mlp_bias": True}),
}


ON_DEVICE = (
    "gemma2",
    "mixtral",
    "olmo3",
    "gemma3-stretched",
    "granite-biases",
    "gpt-oss",
    "qwen3-moe",
    "olmoe",
    "granite-moe",
    "glm45",
    "qwen2-moe",
    "glm45-groups",
    "glm",
    "llama4",
    "smollm3-own-pattern",
    "glm4-a-quarter",
    "cohere2",
    "starcoder2",
    "nemotron",
    "stablelm-parallel",
    "exaone4-windows",
    "arcee",
    "deepseek-v2-lite",
    "deepseek-v3",
    "gemma4-shared-kv",
    "gemma4-experts",
    "gemma4-alike",
    "gemma3n-three-streams",
    "gemma3n",
    "ministral3",
    "llama4-plain",
)
"""Cases that the CUDA kernels compute in Triton's interpreter, which is slow. Those that run
without --long (at 0, 2, 5, 10, 13, 18 and 23) have most of the mechanisms."""
ON_ONE_RANK = tuple(case for case in CASES if case.startswith(("gemma4", "gemma3n", "mimo-v2")))
"""Cases whose layers ranks can't share."""
BITS_ON_DEVICE = (
    "deepseek-v3",
    "cohere2",
    "gpt-oss",
    "glm45-groups",
    "qwen2-moe",
    "gemma3n",
    "gemma4-shared-kv",
    "llama4",
)
"""Cases whose rows are compared bit by bit on a device."""


def config_class(family: str) -> Any:
    """transformers' class of configurations."""
    import transformers

    halves = ("Gemma3", "Gemma3n", "Gemma4", "Llama4", "Qwen3_5", "Qwen3_5Moe", "Step3p7")
    return getattr(transformers, family + ("TextConfig" if family in halves else "Config"))


def read(case: str) -> ModelConfig:
    """The case's model, as our readers understand it."""
    family, settings = CASES[case]
    theirs = config_class(family)(**(SIZES | settings), architectures=[f"{family}ForCausalLM"])
    return read_config(Fields(theirs.to_dict(), case))


RANKS_ON_DEVICE = (
    "gpt-oss",
    "qwen2-moe",
    "deepseek-v2-lite",
    "gemma2",
    "olmo3",
    "starcoder2",
    "stablelm-parallel",
    "glm4-a-quarter",
)
"""Cases that two ranks compute on a device. The first three run without --long."""
