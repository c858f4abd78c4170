"""Voxtral: Whisper's encoder, two products of each four of its vectors, and Llama.

Source: Mistral AI, "Voxtral", 2025.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.audio.family import AudioFamily, TowerKeys, whisper_tower
from penstock.families.llama import LLAMA
from penstock.families.tower_family import TextHalf
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec, StackProjector
from penstock.model.config import ModelConfig

KEYS = TowerKeys("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 131_072,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000_000.0,
    "head_dim": 128,
}
TOWER_DEFAULTS: dict[str, object] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
}
"""The tower's defaults in transformers' VoxtralConfig; TEXT_DEFAULTS are the decoder's there."""
ACTIVATIONS: dict[str, Any] = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}


def _read(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec:
    section = section.completed(**TOWER_DEFAULTS)
    tower = whisper_tower(section, KEYS, pooled=False)
    _check_heads(section, tower.num_heads, tower.head_dim)
    factor = tower.intermediate_size // tower.hidden_size
    if tower.intermediate_size % tower.hidden_size or tower.positions % factor:
        raise UnsupportedModel(
            f"{section.where}: intermediate_size {tower.intermediate_size} says how many vectors "
            f"of {tower.hidden_size} become one; that must be a divisor of max_source_positions, "
            f"{tower.positions}"
        )
    act = fields.text("projector_hidden_act", "gelu")
    if act not in ACTIVATIONS:
        raise fields.wrong("projector_hidden_act", " or ".join(ACTIVATIONS))
    return AudioSpec(
        tower=tower, projector=StackProjector(factor=factor, activation=ACTIVATIONS[act])
    )


def _check_heads(section: Fields, count: int, size: int) -> None:
    """Releases say what follows from the other sizes."""
    for key, wanted in (("num_key_value_heads", count), ("head_dim", size)):
        if section.optional_integer(key) not in (None, wanted):
            raise section.wrong(key, str(wanted))


VOXTRAL = AudioFamily(
    "voxtral",
    ("VoxtralForConditionalGeneration",),
    "Voxtral",
    {"llama": TextHalf(LLAMA, TEXT_DEFAULTS)},
    _read,
    usual="llama",
    harmless=frozenset({"audio_token_id", "hidden_size", "vocab_size"}),
)
