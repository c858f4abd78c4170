"""Tiny random checkpoints of architectures that no family describes, as transformers makes them."""

from __future__ import annotations

from typing import Any

SIZES = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2}
GPT2 = {
    "vocab_size": 199,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2-scaled-by-layer": ("GPT2", GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "starcoder": ("GPTBigCode", GPT2 | {"multi_query": True}),
    "gpt-neox": ("GPTNeoX", SIZES | {"rotary_pct": 0.25}),
    "opt": ("OPT", SIZES | {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "phi": ("Phi", SIZES | GROUPED),
    "persimmon": ("Persimmon", SIZES),
    "helium": ("Helium", SIZES | GROUPED | {"head_dim": 16}),
    "apertus": ("Apertus", SIZES | GROUPED),
    "bitnet": ("BitNet", SIZES | GROUPED),
    "olmo": ("Olmo", SIZES | GROUPED | {"clip_qkv": 4.0}),
    "hunyuan": ("HunYuanDenseV1", SIZES | GROUPED | {"head_dim": 16}),
    "cwm": ("Cwm", SIZES | GROUPED | {"head_dim": 16, "sliding_window": 21}),
    "vaultgemma": ("VaultGemma", SIZES | GROUPED | {"head_dim": 16, "sliding_window": 21}),
    "dots": ("Dots1", SIZES | GROUPED | MOE | {"first_k_dense_replace": 1, "n_shared_experts": 1}),
    "gpt-oss": (
        "GptOss",
        SIZES | GROUPED | {"head_dim": 16, "num_local_experts": 4, "sliding_window": 21},
    ),
    "jais": ("Jais2", SIZES | GROUPED),
    "phimoe": ("Phimoe", SIZES | GROUPED | {"num_local_experts": 4}),
    "deepseek": (
        "DeepseekV3",
        SIZES
        | MOE
        | {
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "n_group": 2,
            "topk_group": 1,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 1,
        },
    ),
    "nanochat": ("NanoChat", SIZES | GROUPED),
    "youtu": (
        "Youtu",
        SIZES
        | {
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
        },
    ),
    "doge": ("Doge", SIZES | GROUPED),
    "diffllama": ("DiffLlama", SIZES | GROUPED),
    "minicpm3": (
        "MiniCPM3",
        SIZES
        | {
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
        },
    ),
    "afmoe": (
        "Afmoe",
        SIZES
        | GROUPED
        | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "sliding_window": 21},
    ),
    "ernie-moe": ("Ernie4_5_Moe", SIZES | GROUPED | MOE | {"moe_num_experts": 4}),
    "modernbert-decoder": ("ModernBertDecoder", SIZES),
    "emu3": ("Emu3", SIZES | GROUPED),
    "glm4lite": (
        "Glm4MoeLite",
        SIZES
        | MOE
        | {
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "n_group": 1,
            "topk_group": 1,
            "num_key_value_heads": 4,
        },
    ),
    "llama4": ("Llama4Text", SIZES | GROUPED),
    "mimo": ("MiMoV2Flash", SIZES | GROUPED),
    "solar": ("SolarOpen", SIZES | GROUPED | MOE),
    "hunyuan-moe": (
        "HunYuanMoEV1",
        SIZES | GROUPED | {"num_experts": 4, "moe_topk": 2, "head_dim": 16},
    ),
    "flexolmo": ("FlexOlmo", SIZES | GROUPED | {"num_experts": 4, "num_experts_per_tok": 2}),
    "minimax2": (
        "MiniMaxM2",
        SIZES | GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    ),
}


def make_theirs(case: str, seed: int = 5) -> Any:
    """Random weights; biases and norms too, which transformers starts at 0 and 1."""
    import torch
    import transformers

    torch.manual_seed(seed)
    family, settings = CASES[case]
    config = getattr(transformers, f"{family}Config")(**settings)
    config._attn_implementation = "eager"  # the only one that has soft caps
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    model = getattr(transformers, NAMES[config.model_type])(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name or "ln_" in name:
                parameter.normal_(1, 0.3)
    return model
