"""What transformers' classes of configurations have for settings that config.json leaves out."""

from __future__ import annotations

QWEN2_DEFAULTS: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 32_768,
}
"""Defaults of transformers' Qwen2Config."""
QWEN3_MOE_DEFAULTS: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "max_position_embeddings": 32_768,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
"""Defaults of transformers' Qwen3MoeConfig. Qwen3Config's are Qwen2Config's."""
MINISTRAL3_DEFAULTS: dict[str, object] = {
    "vocab_size": 131_072,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 34,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-5,
}
"""Defaults of transformers' Ministral3Config but for its stretched rotation, which files have."""

ABSENT: dict[str, dict[str, object]] = {
    "ernie4_5_moe": {"num_key_value_heads": 4},
    "hy_v3": {"num_key_value_heads": 8},
    "llama4": {"num_key_value_heads": 8},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8},
    "qwen3_moe": {"num_key_value_heads": 4},
    "qwen3_next": {"num_key_value_heads": 2},
    "qwen3_5": {
        "num_key_value_heads": 4,
        "vocab_size": 248_320,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "max_position_embeddings": 32_768,
    },
    "qwen3_5_moe": {
        "num_key_value_heads": 2,
        "vocab_size": 248_320,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "max_position_embeddings": 32_768,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
    },
    "falcon_h1": {"num_key_value_heads": 8, "mamba_d_ssm": 1024},
    "gemma2": {
        "num_key_value_heads": 4,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    "gemma3n": {
        "num_key_value_heads": 2,
        "vocab_size_per_layer_input": 262_144,
        "vocab_size": 262_400,
        "hidden_size": 2048,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "max_position_embeddings": 32_768,
        "sliding_window": 512,
    },
    "gemma4": {
        "num_key_value_heads": 4,
        "vocab_size": 262_144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "max_position_embeddings": 131_072,
        "sliding_window": 512,
    },
    "smollm3": {"num_key_value_heads": 4},
    "dots1": {"sliding_window": 4096, "n_shared_experts": 0},
    "solar_open": {"num_key_value_heads": 8},
    "cwm": {"num_key_value_heads": 8, "sliding_window": 8192},
    "glm": {"num_key_value_heads": 2},
    "glm4": {"num_key_value_heads": 2},
    "glm4_moe": {"num_key_value_heads": 8},
    "gpt_oss": {"num_key_value_heads": 8},
    "deepseek_v2": {"q_lora_rank": 1536, "n_shared_experts": 2},
    "deepseek_v3": {"q_lora_rank": 1536, "n_shared_experts": 1},
    "glm4_moe_lite": {"q_lora_rank": 768, "n_shared_experts": 1},
    "deepseek_v32": {"q_lora_rank": 1536, "n_shared_experts": 1},
    "glm_moe_dsa": {"q_lora_rank": 2048, "n_shared_experts": 1},
    "jamba": {"num_key_value_heads": 8},
    "kimi_linear": {"num_shared_experts": 1},
    "nemotron_h": {"num_key_value_heads": 8},
    "starcoder2": {"num_key_value_heads": 2},
    "seed_oss": {"num_key_value_heads": 8},
    "exaone4": {"sliding_window": 4096},
    "ernie4_5": {"num_key_value_heads": 2},
    "minicpm3": {"q_lora_rank": 768, "kv_lora_rank": 256},
    "minimax_m2": {"num_key_value_heads": 8, "head_dim": 128},
    "minimax_m3": {
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 200_064,
        "hidden_size": 6144,
        "intermediate_size": 3072,
        "num_hidden_layers": 60,
        "num_attention_heads": 64,
        "max_position_embeddings": 524_288,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
    },
    "lfm2": {"num_key_value_heads": 8},
    "lfm2_moe": {"num_key_value_heads": 8},
}
"""What transformers' class of a family has for a key that config.json lacks, where that isn't what
a null means: a null for num_key_value_heads is num_attention_heads, for the others none. Sizes are
of families whose settings lie in a section, which older releases of transformers wrote without
what was the class's default."""
