"""Tiny Gemma 4s that see and hear."""

from __future__ import annotations

from typing import Any

import torch

from penstock.protocol.media import MediaItem
from tests.worker.audio.hearing_cases import CONFORMER
from tests.worker.vision.newer_cases import (
    GEMMA4,
    GEMMA4_SQUARES,
    GEMMA4_TOKENS,
    GEMMA4_TOWER,
    GEMMA4_UNIFIED,
)
from tests.worker.vision.vision_cases import PLACEHOLDER, set_buffers

HEARD = 193
"""The placeholder of sounds, which no word is."""


def model(**changes: Any) -> Any:
    """changes: of the conformer's settings."""
    import transformers

    torch.manual_seed(3)
    text = GEMMA4 | {
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 199,
        "use_bidirectional_attention": None,
    }
    config = transformers.Gemma4Config(
        text_config=text,
        vision_config=GEMMA4_TOWER,
        audio_config=CONFORMER | changes,
        **GEMMA4_TOKENS | {"audio_token_id": HEARD},
    )
    config._attn_implementation = "sdpa"
    made = transformers.Gemma4ForConditionalGeneration(config).eval()
    with torch.no_grad():
        set_buffers(made)
    return made


def unified(**changes: Any) -> Any:
    """Gemma 4 12B. changes: of what is said of pictures and of sounds."""
    import transformers

    torch.manual_seed(3)
    config = transformers.Gemma4UnifiedConfig(
        text_config=GEMMA4_UNIFIED,
        vision_config=GEMMA4_SQUARES | changes,
        audio_config=changes,
        **GEMMA4_TOKENS | {"audio_token_id": HEARD},
    )
    made = transformers.Gemma4UnifiedForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "embed_vision" in name and ("pos_embedding" in name or name.endswith("bias")):
                parameter.normal_(0, 0.3)
            elif "embed_vision" in name and parameter.dim() == 1:
                parameter.normal_(1, 0.3)
        set_buffers(made)
    return made


def token_of(item: MediaItem) -> int:
    """The item's placeholder."""
    return HEARD if item.kind == "audio" else PLACEHOLDER
