"""Settings of tiny models of families whose keys and values are made of latents, or whose tokens
see entries that stand for several."""

from __future__ import annotations

from typing import Any

from tests.worker.models.case_sizes import LONGROPE, YARN

DENSE_LATENTS = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 40,
    "q_lora_rank": 28,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 20,
    "v_head_dim": 12,
    "pad_token_id": 0,
}
LATENTS = DENSE_LATENTS | {"moe_intermediate_size": 24, "num_experts_per_tok": 3}
INDEX = {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "index_n_heads": 24,  # of few, a key has no score by any too often: ties
    "index_head_dim": 32,
    "index_topk": 7,
    "pad_token_id": None,  # its embedding is zero, and so are all its scores
}


V4_KINDS = [
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "compressed_sparse_attention",
]
DEEPSEEK_V4 = {
    "num_attention_heads": 6,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 28,
    "o_groups": 2,
    "o_lora_rank": 20,
    "index_n_heads": 24,  # as INDEX has it
    "index_head_dim": 16,
    "index_topk": 9,
    "sliding_window": 21,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 32},
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 24,  # of experts: this class has one name for both
    "moe_intermediate_size": 24,
    "swiglu_limit": 1.5,
    "hc_sinkhorn_iters": 4,
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
    "mistral4": (
        "Mistral4",
        LATENTS
        | {
            "kv_lora_rank": 48,
            "qk_rope_head_dim": 16,
            "n_routed_experts": 8,
            "first_k_dense_replace": 1,
            "rope_parameters": YARN
            | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3},
        },
    ),
    "mistral4-groups": (
        "Mistral4",
        LATENTS
        | {
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "q_lora_rank": None,
            "n_routed_experts": 12,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.5,
            "rope_parameters": YARN
            | {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 32, "factor": 8.0},
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
    "deepseek-v4": (
        "DeepseekV4",
        DEEPSEEK_V4
        | {
            "num_hidden_layers": 4,
            "layer_types": V4_KINDS,
            "mlp_layer_types": ["hash_moe", "moe", "hash_moe", "moe"],
            "rope_parameters": YARN,
        },
    ),
    "deepseek-v4-unlike-blocks": (
        "DeepseekV4",
        DEEPSEEK_V4
        | {
            "layer_types": V4_KINDS[1:],
            "compress_rates": {
                "compressed_sparse_attention": 5,
                "heavily_compressed_attention": 24,
            },
            "num_attention_heads": 4,
            "hc_mult": 3,
            "index_topk": 30,
        },
    ),
    "youtu": ("Youtu", DENSE_LATENTS | {"kv_lora_rank": 32, "qk_rope_head_dim": 16}),
}
