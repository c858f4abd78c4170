"""Shared by the families of audio models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.families.family import TowerFamily
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec
from penstock.model.config import ModelConfig

MAX_BINS = 1024
"""Most bands of a spectrogram."""
OF_TRAINING = (
    "activation_dropout",
    "dropout",
    "encoder_layerdrop",
    "init_std",
    "layerdrop",
    "num_hidden_layers",  # also means encoder_layers where both are there
    "vocab_size",
)
"""Settings of Whisper's encoder, and of others in its form, that change nothing here."""


@dataclass(frozen=True)
class AudioFamily(TowerFamily):
    """A family of audio models: how their files describe an AudioSpec."""

    read: Callable[[Fields, Fields, ModelConfig], AudioSpec | None]

    SECTION: ClassVar[str] = "audio_config"
    PART: ClassVar[str] = "audio"


LOG_MEL_DEFAULTS: dict[str, Any] = {
    "feature_size": 80,
    "sampling_rate": 16_000,
    "hop_length": 160,
    "chunk_length": 30,
    "n_fft": 400,
}
HARMLESS_TO_LOG_MEL = (
    "feature_extractor_type",
    "mel_filters",  # follow from the other settings
    "n_samples",
    "nb_max_frames",
    "padding_side",
    "processor_class",
    "return_attention_mask",
)
OF_WHISPER = (*LOG_MEL_DEFAULTS, *HARMLESS_TO_LOG_MEL, "dither", "padding_value")
"""Settings of sounds in a file that is about pictures, too."""
