"""Tiny random checkpoints of architectures that no family describes, as transformers makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.formats.fields import Fields
from penstock.formats.weight_files import find_safetensors
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.by_transformers import read_for_transformers
from tests.worker.cpu_model import CPUModel

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
HEADS_OF_16 = GROUPED | {"head_dim": 16}
WINDOW = HEADS_OF_16 | {"sliding_window": 21}
MOE = GROUPED | {
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
"""Keys and values of different sizes."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2-scaled-by-layer": ("GPT2", GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "starcoder": ("GPTBigCode", GPT2 | {"multi_query": True}),
    "gpt-neox": ("GPTNeoX", SIZES | {"rotary_pct": 0.25}),
    "opt": ("OPT", SIZES | {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "phi": ("Phi", SIZES | GROUPED),
    "persimmon": ("Persimmon", SIZES),
    "helium": ("Helium", SIZES | HEADS_OF_16),
    "apertus": ("Apertus", SIZES | GROUPED),
    "bitnet": ("BitNet", SIZES | GROUPED),
    "olmo": ("Olmo", SIZES | GROUPED | {"clip_qkv": 4.0}),
    "hunyuan": ("HunYuanDenseV1", SIZES | HEADS_OF_16),
    "cwm": ("Cwm", SIZES | WINDOW),
    "vaultgemma": ("VaultGemma", SIZES | WINDOW),
    "jais": ("Jais2", SIZES | GROUPED),
    "nanochat": ("NanoChat", SIZES | GROUPED),
    "minicpm3": ("MiniCPM3", SIZES | LATENT),
    "phimoe": ("Phimoe", SIZES | GROUPED | {"num_local_experts": 4}),
    "dots": ("Dots1", SIZES | MOE),
    "solar": ("SolarOpen", SIZES | MOE),
    "gpt-oss": ("GptOss", SIZES | WINDOW | {"num_local_experts": 4}),
    "llama": ("Llama", SIZES | GROUPED),  # As with --model-impl transformers, for a family.
    "deepseek": ("DeepseekV3", SIZES | MOE | LATENT | {"n_group": 2, "topk_group": 1}),
}


def described(folder: Path) -> CPUModel:
    """What a folder that transformers saved says, for the transformers backend in float32."""
    path = folder / "config.json"
    config = read_for_transformers(Fields(json.loads(path.read_text()), str(path)))
    files = tuple(str(file) for file in find_safetensors(folder))
    weights = WeightFiles(format="safetensors", files=files, dtype="float32")
    return CPUModel(config, weights, "float32", backend="auto", positions=256)


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
