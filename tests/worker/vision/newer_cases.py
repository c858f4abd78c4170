"""Tiny models of families of 2025 and 2026 that see."""

from __future__ import annotations

from typing import Any

from penstock.model.media_facts import RowImages
from tests.worker.vision.case import COLOURS, PLACEHOLDER, SEES, TEXT, Case

PIXTRAL: dict[str, Any] = SEES | {
    "class": "PixtralVisionConfig",
    "image_size": 64,
    "patch_size": 4,
    "hidden_act": "silu",
}
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
}
