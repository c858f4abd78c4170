"""MiniCPM-V up to 4.5: tiny models whose queries see all patches of a slice, with each of its
decoders. Their attention's heads have 128 numbers, and so have the decoders as many times that."""

from __future__ import annotations

from typing import Any

from penstock.forms.sliced import SlicedImages
from tests.worker.vision.case import COLOURS, PLACEHOLDER, POSITIONS, SEES, TEXT, Case

QUERIES = 6
WIDE = TEXT | {"hidden_size": 256, "num_attention_heads": 16}
SLICED = SlicedImages(pixels=COLOURS, patch=4, whole=1, scale=32, most=4, queries=QUERIES)
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "original_max_position_embeddings": POSITIONS,
    "factor": 1.0,
}


def resampled(config: Any) -> Any:
    """MiniCPM-V, of the configuration of LLaVA."""
    from tests.worker.vision.resampler_model import MiniCPMV

    return MiniCPMV(config)


def _case(decoder: str, **text: Any) -> Case:
    settings = {
        "text_config": WIDE | text | {"class": decoder},
        "vision_config": SEES | {"class": "SiglipVisionConfig", "image_size": 28, "patch_size": 4},
        "image_token_index": PLACEHOLDER,
        "tie_word_embeddings": False,
    }
    return Case("Llava", settings, SLICED, resampled, "MiniCPMV")


OF_MINICPM: dict[str, Case] = {
    "minicpm-v-2.6": _case("Qwen2Config"),
    "minicpm-v-4.0": _case("LlamaConfig", rope_parameters=LONG),
    "minicpm-v-4.5": _case("Qwen3Config", head_dim=16),
}
