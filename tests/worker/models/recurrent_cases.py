"""Settings of tiny models with recurrent layers, as family_cases has them."""

from __future__ import annotations

from typing import Any

from tests.worker.models.case_sizes import GROUPED, QUARTER, WHOLE

LINEAR, FULL = "linear_attention", "full_attention"

DELTA = {
    "initializer_range": 0.1,
    "head_dim": 16,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "layer_types": [LINEAR, FULL, LINEAR],
    "rope_parameters": QUARTER | {"partial_rotary_factor": 0.5},
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
GRANITE = WHOLE | {
    "layer_types": [LINEAR, FULL, LINEAR],
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.5,
    "shared_intermediate_size": 56,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
BAMBA = WHOLE | {
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
NEMOTRON = GROUPED | {
    "mamba_num_heads": 6,
    "mamba_head_dim": 10,
    "n_groups": 3,
    "ssm_state_size": 14,
    "chunk_size": 16,
    "time_step_min": 1e-9,  # transformers takes it for a limit, NVIDIA's own code doesn't
    "rescale_prenorm_residual": False,
}

FALCON = WHOLE | {
    "mamba_d_ssm": 80,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_chunk_size": 16,
    "mamba_norm_before_gate": False,
}

KIMI = {
    "pad_token_id": 0,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "linear_head_dim": 20,
    "linear_num_heads": 3,
    "n_routed_experts": 6,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "layer_types": [LINEAR, FULL, LINEAR],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "initializer_range": 0.1,
}
OLMO = WHOLE | {
    "pad_token_id": 0,
    "eos_token_id": 2,
    "layer_types": [LINEAR, FULL, LINEAR],
    "rope_parameters": {"rope_type": "default", "rope_theta": None},
    "linear_value_head_dim": 12,  # transformers saves equal parts of the convolution only
    "initializer_range": 0.2,
}
MAMBA = {
    "pad_token_id": 0,
    "num_heads": 9,
    "head_dim": 16,
    "n_groups": 3,
    "state_size": 12,
    "chunk_size": 16,
}

MAMBA1 = {"pad_token_id": 0, "time_step_rank": 7, "state_size": 10}
JAMBA = WHOLE | {
    "num_hidden_layers": 4,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "use_mamba_kernels": False,
}

RECURRENT_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": (
        "Lfm2",
        WHOLE | {"layer_types": ["conv", FULL, "conv"], "block_multiple_of": 8},
    ),
    "lfm2-biases-no-adjustment": (
        "Lfm2",
        WHOLE
        | {
            "full_attn_idxs": [2],
            "conv_bias": True,
            "conv_L_cache": 5,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2-moe": (
        "Lfm2Moe",
        WHOLE
        | {
            "layer_types": ["conv", FULL, "conv"],
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
        },
    ),
    "qwen3-next": ("Qwen3Next", DELTA | EXPERTS | {"mlp_only_layers": [1]}),
    "qwen3-next-biases": (
        "Qwen3Next",
        DELTA
        | EXPERTS
        | {"attention_bias": True, "norm_topk_prob": False, "linear_num_value_heads": 2},
    ),
    "qwen35": ("Qwen3_5", DELTA | {"num_hidden_layers": 4, "layer_types": None}),
    "qwen35-moe": ("Qwen3_5Moe", DELTA | EXPERTS),
    "granite-hybrid": ("GraniteMoeHybrid", GRANITE | {"num_local_experts": 0}),
    "granite-moe-hybrid": (
        "GraniteMoeHybrid",
        GRANITE
        | {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "position_embedding_type": "rope",
            "mamba_proj_bias": True,
            "time_step_limit": (0.05, 2.0),
        },
    ),
    "bamba": ("Bamba", BAMBA | {"attn_layer_indices": [1]}),
    "bamba-biases": (
        "Bamba",
        BAMBA
        | {
            "attn_layer_indices": [0, 2],
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "time_step_limit": (0.05, 2.0),
        },
    ),
    "falcon-h1": (
        "FalconH1",
        FALCON
        | {
            "attention_in_multiplier": 0.8,
            "attention_out_multiplier": 0.9,
            "key_multiplier": 0.4,
            "embedding_multiplier": 5.5,
            "lm_head_multiplier": 0.3,
            "mlp_multipliers": [0.9, 0.6],
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.4,
            "ssm_multipliers": [0.35, 0.25, 0.36, 0.5, 0.34],
        },
    ),
    "falcon-h1-norm": ("FalconH1", FALCON | {"mamba_rms_norm": True, "projectors_bias": False}),
    "kimi-linear": ("KimiLinear", KIMI),
    "kimi-linear-groups": (
        "KimiLinear",
        KIMI
        | {
            "linear_head_dim": 32,
            "linear_conv_kernel_dim": 3,
            "q_lora_rank": 20,
            "n_group": 3,
            "topk_group": 2,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
        },
    ),
    "olmo-hybrid": ("OlmoHybrid", OLMO),
    "olmo-hybrid-turning": (
        "OlmoHybrid",
        OLMO
        | {
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 20,
            "linear_num_value_heads": 2,
            "linear_value_head_dim": 20,
            "linear_allow_neg_eigval": False,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "mamba2": ("Mamba2", MAMBA),
    "mamba2-biases": (
        "Mamba2",
        MAMBA
        | {
            "n_groups": 1,
            "use_bias": True,
            "use_conv_bias": False,
            "conv_kernel": 3,
            "time_step_limit": (0.05, 2.0),
            "tie_word_embeddings": True,
        },
    ),
    "mamba": ("Mamba", MAMBA1),
    "mamba-biases": (
        "Mamba",
        MAMBA1 | {"use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "expand": 1},
    ),
    "falcon-mamba": ("FalconMamba", MAMBA1 | {"mixer_rms_eps": 1e-5}),
    "jamba": ("Jamba", JAMBA),
    "jamba-dense": (
        "Jamba",
        JAMBA
        | {
            "num_experts": 1,
            "attn_layer_period": 2,
            "mamba_d_conv": 3,
            "mamba_d_state": 9,
            "mamba_dt_rank": 11,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
        },
    ),
    "nemotron-h": (
        "NemotronH",
        NEMOTRON | {"layers_block_type": [LINEAR, "mlp", FULL, LINEAR]},
    ),
    "nemotron-h-moe": (
        "NemotronH",
        NEMOTRON
        | {
            "layers_block_type": ["moe", LINEAR, FULL, "moe"],
            "use_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    "nemotron-h-latent": (
        "NemotronH",
        NEMOTRON
        | {
            "layers_block_type": ["moe", LINEAR, FULL, "moe"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "moe_latent_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "routed_scaling_factor": 5.0,
        },
    ),
}
NOT_ON_DEVICE = ("Mamba", "FalconMamba", "Jamba", "FalconH1", "KimiLinear", "OlmoHybrid")
ON_DEVICE = tuple(
    case for case, (family, _) in RECURRENT_CASES.items() if family not in NOT_ON_DEVICE
)
"""Cases that the CUDA kernels compute, in Triton's interpreter."""
BITS_ON_DEVICE = (
    "qwen3-next",
    "granite-moe-hybrid",
    "lfm2-biases-no-adjustment",
    "nemotron-h-moe",
    "nemotron-h-latent",
)
"""Cases whose rows are compared bit by bit on a device."""
RANKS_ON_DEVICE = ("granite-moe-hybrid", "qwen35", "lfm2", "nemotron-h-latent")
"""Cases that two ranks compute on a device."""
