"""Sizes and rotations that the cases of several families share."""

from __future__ import annotations

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


WHOLE = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}
"""Heads that make up the hidden size."""


def mixed(*kinds: str) -> list[str]:
    return [f"{kind}_attention" for kind in kinds]
