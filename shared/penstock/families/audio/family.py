"""A family of models that hear, and what the readers of such families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.tower_family import TowerFamily
from penstock.families.vision.reading import MAX_WIDTH, bounded, heads
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec, AudioTowerSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec

AUDIO = "audio_config"
MAX_BINS = 1024
"""Most bands of a spectrogram."""
MAX_POSITIONS = 65_536
"""Most rows of a table of positions."""
OF_TRAINING = (
    "activation_dropout",
    "dropout",
    "encoder_layerdrop",
    "init_std",
    "layerdrop",
    "num_hidden_layers",  # also means encoder_layers where both are there
    "vocab_size",
)


@dataclass(frozen=True)
class AudioFamily(TowerFamily):
    """A family of models that hear: how their files say what AudioSpec says."""

    read: Callable[[Fields, Fields, ModelConfig], AudioSpec]

    SECTION: ClassVar[str] = AUDIO
    PART: ClassVar[str] = "audio"


@dataclass(frozen=True)
class TowerKeys:
    """What the tower's section calls its sizes."""

    hidden: str
    inner: str
    layers: str
    heads: str


def whisper_tower(section: Fields, keys: TowerKeys, *, pooled: bool) -> AudioTowerSpec:
    """Whisper's encoder. Raises UnsupportedModel for a variant that isn't served."""
    hidden = bounded(section, keys.hidden, MAX_WIDTH)
    hub.only(section, scale_embedding=False)
    act = hub.activation(
        section, "gelu", "gelu_tanh", "silu", key="activation_function", default="gelu"
    )
    positions = bounded(section, "max_source_positions", MAX_POSITIONS)
    if pooled and positions % 2:
        raise UnsupportedModel(
            f"{section.where}: max_source_positions is {positions}; an even number is needed, "
            "since each two become one"
        )
    tower = AudioTowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, keys.inner, MAX_WIDTH),
        num_layers=layer_count(section, keys.layers),
        num_heads=heads(section, keys.heads, hidden),
        mel_bins=bounded(section, "num_mel_bins", MAX_BINS),
        positions=positions,
        norm=NormSpec(kind="layer", eps=1e-5, bias=True),
        activation=act,
        pooled=pooled,
    )
    section.ignore(*OF_TRAINING)
    return tower
