"""Qwen2-Audio: Whisper's encoder, the mean of each two of its vectors, a product, and Qwen 2.

Source: Chu et al., "Qwen2-Audio technical report", 2024.
"""

from __future__ import annotations

from penstock.families.audio.family import AudioFamily, TowerKeys, whisper_tower
from penstock.families.qwen2 import QWEN2
from penstock.families.tower_family import TextHalf
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec, LinearProjector
from penstock.model.config import ModelConfig

KEYS = TowerKeys("d_model", "encoder_ffn_dim", "encoder_layers", "encoder_attention_heads")
TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
}
"""Defaults of transformers' Qwen2Config."""
TOWER_DEFAULTS: dict[str, object] = {
    "d_model": 1280,
    "encoder_ffn_dim": 5120,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
}
"""Defaults of transformers' Qwen2AudioEncoderConfig."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> AudioSpec:
    tower = whisper_tower(section.completed(**TOWER_DEFAULTS), KEYS, pooled=True)
    return AudioSpec(tower=tower, projector=LinearProjector(), cut=True)


QWEN2_AUDIO = AudioFamily(
    "qwen2_audio",
    ("Qwen2AudioForConditionalGeneration",),
    "Qwen2-Audio",
    {"qwen2": TextHalf(QWEN2, TEXT_DEFAULTS)},
    _read,
    usual="qwen2",
    harmless=frozenset({"audio_token_id", "audio_token_index", "ignore_index", "vocab_size"}),
    ignored=("use_mrope",),
)
