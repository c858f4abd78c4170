"""Tiny random checkpoints of each family, saved by transformers, against transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.checkpoints import hub_model
from tests.worker.models.parity import compare

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
}


def make_theirs(family: str, settings: dict[str, Any]) -> Any:
    """Random weights; biases and norms too, which transformers starts at 0 and 1."""
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{family}Config")(**(SIZES | settings))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.normal_(1, 0.3)
    return model


def random_prompts() -> list[list[int]]:
    choose = random.Random(8)
    lengths = [1, 2, 15, 16, 17, 63, 64, 65, 130, 180]
    return [[choose.randrange(SIZES["vocab_size"]) for _ in range(n)] for n in lengths]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES)
def test_equals_transformers(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*CASES[case])
    theirs.save_pretrained(tmp_path, max_shard_size="100KB" if "llama" in case else "5GB")
    shards = list(tmp_path.glob("model-*.safetensors"))
    assert (len(shards) > 1) == ("llama" in case)
    prompts = random_prompts()
    compared = compare(hub_model(tmp_path, torch.float32), theirs, prompts, 64)
    assert compared >= len(prompts) * 16
