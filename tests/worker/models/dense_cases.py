"""Settings of tiny models of families whose layers have one feed-forward each."""

from __future__ import annotations

from typing import Any

from tests.worker.models.case_sizes import (
    GROUPED,
    LLAMA3_ROPE,
    LONGROPE,
    QUARTER,
    WHOLE,
    YARN,
    mixed,
)

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
ALPHA = {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 50.0, "factor": 1.0}
"""Hunyuan's, by which the base grows."""


DENSE: dict[str, tuple[str, dict[str, Any]]] = {
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
    "gemma4-unified": (
        "Gemma4Unified",
        {key: value for key, value in GEMMA4.items() if "per_layer_input" not in key}
        | {
            "num_hidden_layers": 4,
            "layer_types": mixed("sliding", "full", "sliding", "full"),
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
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
    "starcoder2": ("Starcoder2", WHOLE | {"sliding_window": 21}),
    "stablelm": ("StableLm", WHOLE | {"use_qkv_bias": True, "rope_parameters": QUARTER}),
    "stablelm-parallel": (
        "StableLm",
        WHOLE | {"use_parallel_residual": True, "rope_parameters": QUARTER},
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
    "cwm": (
        "Cwm",
        GROUPED | {"num_hidden_layers": 4, "sliding_window": 21, "rope_parameters": LLAMA3_ROPE},
    ),
    "seed-oss": ("SeedOss", GROUPED | {"attention_bias": True, "attention_out_bias": True}),
    "arcee": ("Arcee", WHOLE | {"mlp_bias": True}),
    "apertus": ("Apertus", WHOLE),
    "apertus-stretched": (
        "Apertus",
        WHOLE | {"attention_bias": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "muse-glimmer": (
        "MuseGlimmer",
        WHOLE | {"num_hidden_layers": 5, "sliding_window": 21, "rms_norm_eps": 0.01},
    ),
    "muse-glimmer-own-pattern": (
        "MuseGlimmer",
        WHOLE
        | {
            "head_dim": 32,
            "sliding_window": 21,
            "layer_types": mixed("full", "sliding", "full"),
            "layer_rope_theta": [0, 10_000.0, 10_000.0],
            "qk_scale_factor": 1.5,
            "output_multiplier": 0.4,
            "post_norm_eps": 0.05,
            "final_logit_softcapping": 5.0,
        },
    ),
    "granite-swa": (
        "GraniteSWA",
        WHOLE
        | {
            "num_hidden_layers": 5,
            "sliding_window": 21,
            "layer_rope_theta": [0, 100.0, 5000.0, 100.0, 0],
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
    ),
    "hyperclovax": (
        "HyperCLOVAX",
        WHOLE
        | {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 0.5,
        },
    ),
    "hyperclovax-plain": (
        "HyperCLOVAX",
        WHOLE | {"use_post_norm": False, "attention_bias": True, "mlp_bias": True},
    ),
    "bitnet": ("BitNet", WHOLE | {"tie_word_embeddings": True}),
    "bitnet-silu-biases": ("BitNet", WHOLE | {"hidden_act": "silu", "attention_bias": True}),
    "helium": ("Helium", WHOLE | {"head_dim": 16, "pad_token_id": 0}),
    "vaultgemma": ("VaultGemma", GROUPED | {"sliding_window": 21, "query_pre_attn_scalar": 24}),
    "jais2": ("Jais2", WHOLE),
    "phi2": (
        "Phi",
        WHOLE
        | {
            "num_key_value_heads": 6,
            "rope_parameters": QUARTER | {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "phi-exact-gelu": ("Phi", WHOLE | {"hidden_act": "gelu"}),
    "olmo1": ("Olmo", WHOLE),
    "olmo1-bounded": ("Olmo", WHOLE | {"clip_qkv": 1.5}),
    "nanochat": ("NanoChat", WHOLE | {"pad_token_id": 0}),
    "hunyuan-dense": ("HunYuanDenseV1", GROUPED | {"pad_token_id": 0, "rope_parameters": ALPHA}),
}
