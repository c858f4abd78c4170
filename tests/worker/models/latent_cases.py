"""Settings of tiny models of families whose keys and values are made of latents."""

from __future__ import annotations

from typing import Any

from tests.worker.models.case_sizes import LONGROPE, YARN

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


LATENT: dict[str, tuple[str, dict[str, Any]]] = {
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
}
