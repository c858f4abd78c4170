"""Tiny models of families of 2025 and 2026 that see."""

from __future__ import annotations

from typing import Any

from penstock.model.media_facts import NaflexImages, RowImages
from tests.worker.vision.case import COLOURS, PLACEHOLDER, SEES, TEXT, WIDE, Case

PIXTRAL: dict[str, Any] = SEES | {
    "class": "PixtralVisionConfig",
    "image_size": 64,
    "patch_size": 4,
    "hidden_act": "silu",
}
SIGLIP2: dict[str, Any] = SEES | {
    "class": "Siglip2VisionConfig",
    "patch_size": 4,
    "num_patches": 25,
}
LFM2: dict[str, Any] = {
    "block_multiple_of": 8,
    "layer_types": ["conv", "full_attention", "conv"],
}
NAFLEX = NaflexImages(
    pixels=COLOURS, patch=4, merge=2, min_rows=4, max_rows=12, tile=16, least=2, most=4
)
NEWER: dict[str, Case] = {
    "lighton-ocr": Case(
        "LightOnOcr",
        {
            "text_config": TEXT | {"class": "Qwen3Config", "head_dim": 16},
            "vision_config": PIXTRAL,
            "image_token_id": PLACEHOLDER,
        },
        RowImages(pixels=COLOURS, longest_edge=64, patch=8, row_end="", end=""),
    ),
    "lfm2-vl": Case(
        "Lfm2Vl",
        {
            "text_config": WIDE | LFM2 | {"class": "Lfm2Config"},
            "vision_config": SIGLIP2,
            "image_token_id": PLACEHOLDER,
            "projector_hidden_size": 56,
        },
        NAFLEX,
    ),
    "lfm2-vl-moe-without-a-norm": Case(
        "Lfm2Vl",
        {
            "text_config": WIDE
            | LFM2
            | {
                "class": "Lfm2MoeConfig",
                "num_dense_layers": 1,
                "num_experts": 6,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 24,
            },
            "vision_config": SIGLIP2,
            "image_token_id": PLACEHOLDER,
            "projector_hidden_size": 56,
            "projector_use_layernorm": False,
            "projector_bias": False,
        },
        NAFLEX,
    ),
}
