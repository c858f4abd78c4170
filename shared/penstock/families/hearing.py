"""What families of models that hear have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

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
    """A family of models that hear: how their files say what AudioSpec says."""

    read: Callable[[Fields, Fields, ModelConfig], AudioSpec | None]

    SECTION: ClassVar[str] = "audio_config"
    PART: ClassVar[str] = "audio"
