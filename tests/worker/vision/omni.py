"""Tiny Qwen-Omnis that see, hear and write: their settings, and the places of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.worker.vision.case import (
    PLACEHOLDER,
    QWEN3_TOWER,
    QWEN_PATCHES,
    QWEN_TOWER,
    SECTIONS,
    SECTIONS_3,
    TEXT,
    WIDE,
    Case,
)

BANDS = 12
OMNI_TEXT: dict[str, Any] = TEXT | {
    "hidden_size": 96,
    "rope_parameters": SECTIONS_3,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
}
OMNI_TOWER: dict[str, Any] = QWEN3_TOWER | {"out_hidden_size": 96}
OMNI_HEARS: dict[str, Any] = {
    "num_mel_bins": BANDS,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "d_model": 48,
    "n_window_infer": 200,
    "downsample_hidden_size": 8,
    "output_dim": 96,
    "initializer_range": 0.2,
}
AROUND = {"vision_start_token_id": 194, "vision_end_token_id": 195, "audio_start_token_id": 196}
"""Tokens before and behind pictures and sounds; transformers finds these by the first ones."""
OMNI_2_5: dict[str, Any] = {
    "text_config": WIDE | {"rope_parameters": SECTIONS, "tie_word_embeddings": False},
    "vision_config": QWEN_TOWER
    | {
        "depth": 3,
        "hidden_size": 48,
        "out_hidden_size": 96,
        "intermediate_size": 52,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    },
    "audio_config": {
        "num_mel_bins": BANDS,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "d_model": 48,
        "n_window": 10,
        "max_source_positions": 50,
        "output_dim": 96,
        "initializer_range": 0.2,
    },
} | AROUND
"""Settings of a Qwen2.5-Omni, but for the tokens that stand for media."""
OF_OMNI: dict[str, Case] = {
    "qwen2.5-omni": Case(
        "Qwen2_5OmniThinker",
        OMNI_2_5
        | {
            "image_token_index": PLACEHOLDER,
            "video_token_index": 999,
            "audio_token_index": 193,
        },
        QWEN_PATCHES,
    ),
    "qwen3-omni": Case(
        "Qwen3OmniMoeThinker",
        {
            "text_config": OMNI_TEXT,
            "vision_config": OMNI_TOWER,
            "audio_config": OMNI_HEARS,
            "image_token_id": PLACEHOLDER,
            "video_token_id": 999,
            "audio_token_id": 193,
        }
        | AROUND,
        QWEN_PATCHES,
    ),
}


def places(tokens: Sequence[int], grids: Sequence[Sequence[int]], side: int = 2) -> torch.Tensor:
    """Frame, row and column of each token, [3, 1, tokens]: a text's counts, and so does a
    picture's first; behind a picture counting goes on at the largest. grids: of pictures, frames,
    rows and columns of patches."""
    found: list[tuple[int, int, int]] = []
    waiting, count, at = iter(grids), 0, 0
    while at < len(tokens):
        if tokens[at] != PLACEHOLDER:
            found.append((count, count, count))
            count, at = count + 1, at + 1
            continue
        _, rows, columns = next(waiting)
        high, wide = rows // side, columns // side
        for row in range(high):
            found += [(count, count + row, count + column) for column in range(wide)]
        count, at = count + max(high, wide), at + high * wide
    return torch.tensor(found).T[:, None]
