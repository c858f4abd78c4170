"""Qwen2.5-Omni's "thinker" (pictures and sounds in, text out): Qwen2.5-VL's tower and decoder, and
Whisper's encoder over blocks (`penstock.families.audio`). The speech part isn't read. Pictures and
sounds are served; videos, whose positions go by time, aren't.

Source: Qwen team, "Qwen2.5-Omni technical report", 2025.
"""

from __future__ import annotations

from penstock.families.hearing import OF_WHISPER
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import QWEN, SPEAKS
from penstock.families.vision.image_processor import ImageSettings
from penstock.families.vision.pictures import merged_patches
from penstock.families.vision.qwen_vl import HALF, QWEN2_5_VL
from penstock.families.vision.reading import VISION, TextHalf, VisionFamily
from penstock.formats.fields import Fields
from penstock.model.media_facts import KindFacts

TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
}
"""Defaults of transformers' Qwen2_5OmniTextConfig."""
OMNI_2_5 = (
    "Qwen2_5OmniForConditionalGeneration",
    "Qwen2_5OmniModel",
    "Qwen2_5OmniThinkerForConditionalGeneration",
)
"""Qwen2.5-Omni as a whole, as the makers' files call it, and what listens and writes in it."""
KNOWN_AS = "Qwen2.5-Omni"
USUAL = "qwen2_5_omni_text"
HALVES = {USUAL: TextHalf(HALF.family, TEXT_DEFAULTS)}
BESIDE = frozenset(
    {
        "audio_config",
        "ignore_index",
        "position_id_per_seconds",  # of videos, as the next
        "seconds_per_chunk",
        VISION,
    }
)


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Pictures are Qwen2.5-VL's, or Qwen3-VL's. Settings of sounds may stand among theirs."""
    settings.ignore(*OF_WHISPER)
    return merged_patches(settings, config, tokens)


QWEN2_5_OMNI = VisionFamily(
    "qwen2_5_omni",
    OMNI_2_5,
    KNOWN_AS,
    HALVES,
    QWEN2_5_VL.read,
    usual=USUAL,
    harmless=BESIDE,
    pictures=pictures,
    hub_names=QWEN | dict.fromkeys(SPEAKS),
)
