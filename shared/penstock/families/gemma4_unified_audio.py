"""Gemma 4 12B's hearing: no tower, but a norm without weights and a product of some samples in a
row; and its decoder.

Source: transformers' Gemma4UnifiedAudioConfig and the model that has it.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import TextHalf
from penstock.families.gemma4_unified import GEMMA4_UNIFIED
from penstock.families.hearing import AudioFamily
from penstock.families.tower_names import under
from penstock.families.vision.reading import MAX_WIDTH, bounded
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec, WaveformSpec
from penstock.model.config import ModelConfig
from penstock.model.sound_projector_spec import NormedProjector

FRAME = 640
"""Samples of a row, where config.json doesn't say."""
FRAME_KEYS = ("audio_embed_dim", "audio_samples_per_token", "hidden_size", "output_proj_dims")
"""What it calls them."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec | None:
    if not section.values:
        return None
    stated = next((key for key in FRAME_KEYS if key in section), FRAME_KEYS[0])
    frame = bounded(section, stated, MAX_WIDTH, FRAME)
    hub.only(section, **dict.fromkeys(FRAME_KEYS, frame))
    eps = section.number("rms_norm_eps", 1e-6)
    return AudioSpec(tower=WaveformSpec(frame=frame), projector=NormedProjector(eps=eps))


GEMMA4_UNIFIED_AUDIO = AudioFamily(
    "gemma4_unified",
    ("Gemma4UnifiedForConditionalGeneration",),
    "Gemma 4 12B",
    {"gemma4_unified_text": TextHalf(GEMMA4_UNIFIED, nulls=True)},
    _read,
    usual="gemma4_unified_text",
    hub_names=under("embed_audio", {"embedding_projection": ""}, "projector"),
)
