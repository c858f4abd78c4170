"""Settings of tiny models of families whose layers choose among experts."""

from __future__ import annotations

from typing import Any

from tests.worker.models.case_sizes import GROUPED, LLAMA3_ROPE, QUARTER, WHOLE, YARN, mixed
from tests.worker.models.dense_cases import GEMMA4

DBRX: dict[str, Any] = {
    "hidden_size": 96,
    "d_model": 96,
    "intermediate_size": 40,
    "n_heads": 6,
    "n_layers": 3,
    "num_hidden_layers": 3,
    "max_seq_len": 256,
    "attn_config": {"clip_qkv": 0.7, "kv_n_heads": 2, "rope_theta": 10_000.0},
    "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 6, "moe_top_k": 3},
}

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

ERNIE_EXPERTS = {
    "moe_num_experts": 6,
    "moe_k": 3,
    "moe_intermediate_size": 32,
    "tie_word_embeddings": False,
}

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

PHIMOE = WHOLE | {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "router_jitter_noise": 0.3,
    "attention_bias": True,
    "lm_head_bias": True,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        "short_mscale": 1.243163121016122,
        "long_mscale": 1.243163121016122,
        "original_max_position_embeddings": 256,
    },
}

M3_KINDS = ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]
MINIMAX_M3 = GROUPED | {
    "dense_intermediate_size": 100,
    "intermediate_size": 24,  # of experts
    "shared_intermediate_size": 40,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_block_size": 16,
    "index_topk_blocks": 3,
    "index_local_blocks": 1,
    "rope_parameters": QUARTER | {"partial_rotary_factor": 0.5},
}

COHERE_EXPERTS = GROUPED | {
    "num_hidden_layers": 4,
    "intermediate_size": 40,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "sliding_window": 21,
    "logit_scale": 0.5,
}
LAGUNA = GROUPED | {
    "layer_types": mixed("full", "sliding", "sliding"),
    "sliding_window": 21,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "moe_routed_scaling_factor": 2.5,
    "rope_parameters": {
        "full_attention": YARN | {"partial_rotary_factor": 0.5, "beta_fast": 64.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}

EXPERTS: dict[str, tuple[str, dict[str, Any]]] = {
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
    "mixtral": (
        "Mixtral",
        GROUPED | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 21},
    ),
    "phimoe": ("Phimoe", PHIMOE),
    "phimoe-plain": (
        "Phimoe",
        WHOLE | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 21},
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
    "flex-olmo": (
        "FlexOlmo",
        WHOLE | {"num_experts": 5, "num_experts_per_tok": 3, "pad_token_id": 0},
    ),
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
    "laguna": ("Laguna", LAGUNA | {"num_attention_heads_per_layer": [6, 10, 8]}),
    "laguna-alike": (
        "Laguna",
        LAGUNA
        | {
            "layer_types": mixed("full", "full", "full"),
            "mlp_layer_types": ["sparse"] * 3,
            "rope_parameters": {"full_attention": QUARTER | {"partial_rotary_factor": 0.5}},
            "attention_bias": True,
        },
    ),
    "minimax-m2": (
        "MiniMaxM2",
        GROUPED
        | {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "rope_parameters": QUARTER | {"partial_rotary_factor": 0.5},
        },
    ),
    "minimax-m3": ("MiniMaxM3VL", MINIMAX_M3 | {"layer_types": M3_KINDS}),
    "minimax-m3-two-local": (
        "MiniMaxM3VL",
        MINIMAX_M3
        | {
            "layer_types": M3_KINDS[1:] + M3_KINDS[-1:],
            "mlp_layer_types": ["sparse"] * 3,
            "index_block_size": 32,
            "index_topk_blocks": 4,
            "index_local_blocks": 2,
            "routed_scaling_factor": 1.0,
        },
    ),
    "granite-moe-swa": (
        "GraniteMoeSWA",
        WHOLE
        | {
            "sliding_window": 21,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 56,
            "attention_multiplier": 0.2,
        },
    ),
    "mellum2": (
        "Mellum",
        GROUPED
        | {
            "sliding_window": 21,
            "layer_types": mixed("sliding", "sliding", "full"),
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "trinity": (
        "Afmoe",
        GROUPED
        | {
            "num_hidden_layers": 4,
            "sliding_window": 21,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "num_shared_experts": 1,
            "route_scale": 2.826,
            "mup_enabled": True,
        },
    ),
    "north-mini-code": (
        "Cohere2Moe",
        COHERE_EXPERTS
        | {
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": False,
            "rms_norm_eps": 1e-6,
            "prefix_dense_intermediate_size": 100,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "layer_types": mixed("full", "sliding", "full", "sliding"),
        },
    ),
    "cohere2-moe-shared": (
        "Cohere2Moe",
        COHERE_EXPERTS | {"num_shared_experts": 2, "sliding_window_pattern": 2},
    ),
    "dbrx": ("Dbrx", DBRX),
    "dbrx-unnormalised": (
        "Dbrx",
        DBRX
        | {
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 3, "rope_theta": 10_000.0},
            "ffn_config": DBRX["ffn_config"]
            | {"moe_normalize_expert_weights": None, "ffn_act_fn": {"name": "silu"}},
        },
    ),
    "hunyuan-moe": (
        "HunYuanMoEV1",
        GROUPED | {"pad_token_id": 0, "num_experts": 6, "moe_topk": 3},
    ),
}
