"""config.json of models that hear, in the form that releases have it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.tower_spec import AudioSpec, LinearProjector, StackProjector
from penstock.prepare.hub_config import read_config

QWEN2_AUDIO: dict[str, Any] = {
    "architectures": ["Qwen2AudioForConditionalGeneration"],
    "audio_config": {
        "model_type": "qwen2_audio_encoder",
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "attention_dropout": 0.0,
        "d_model": 1280,
        "dropout": 0.0,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "encoder_layerdrop": 0.0,
        "encoder_layers": 32,
        "init_std": 0.02,
        "max_source_positions": 1500,
        "num_mel_bins": 128,
        "scale_embedding": False,
    },
    "audio_token_index": 151646,
    "ignore_index": -100,
    "model_type": "qwen2_audio",
    "text_config": {
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "intermediate_size": 11008,
        "max_position_embeddings": 8192,
        "model_type": "qwen2",
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "sliding_window": 32768,
        "torch_dtype": "bfloat16",
        "use_mrope": False,
        "vocab_size": 156032,
    },
    "torch_dtype": "bfloat16",
    "vocab_size": 156032,
}
VOXTRAL: dict[str, Any] = {
    "architectures": ["VoxtralForConditionalGeneration"],
    "audio_config": {
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "attention_dropout": 0.0,
        "dropout": 0.0,
        "head_dim": 64,
        "hidden_size": 1280,
        "initializer_range": 0.02,
        "intermediate_size": 5120,
        "layerdrop": 0.0,
        "max_source_positions": 1500,
        "model_type": "voxtral_encoder",
        "num_attention_heads": 20,
        "num_hidden_layers": 32,
        "num_key_value_heads": 20,
        "num_mel_bins": 128,
        "scale_embedding": False,
        "vocab_size": 51866,
    },
    "audio_token_id": 24,
    "hidden_size": 3072,
    "model_type": "voxtral",
    "projector_hidden_act": "gelu",
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "initializer_range": 0.02,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 30,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 100000000.0,
        "use_cache": True,
        "vocab_size": 131072,
    },
}


def read(values: dict[str, Any], **options: bool) -> ModelConfig:
    return read_config(Fields(values, "config.json"), **options)


def heard(config: ModelConfig) -> AudioSpec:
    assert config.audio is not None
    return config.audio


def test_qwen2_audio() -> None:
    config = read(QWEN2_AUDIO)
    audio = heard(config)
    assert (config.architecture, config.num_layers, config.hidden_size) == ("qwen2", 32, 4096)
    assert (config.vocab_size, config.intermediate_size) == (156032, 11008)
    tower = audio.tower
    assert (tower.hidden_size, tower.num_layers, tower.positions) == (1280, 32, 1500)
    assert (audio.row_frames, audio.chunk_rows, audio.cut) == (4, 750, True)
    assert audio.projector == LinearProjector()


def test_voxtral() -> None:
    config = read(VOXTRAL)
    audio = heard(config)
    assert (config.architecture, config.num_layers, config.head_dim) == ("llama", 30, 128)
    assert (audio.row_frames, audio.chunk_rows, audio.cut) == (8, 375, False)
    assert audio.projector == StackProjector(factor=4)
    assert audio.tower.intermediate_size == 5120


@pytest.mark.parametrize("values", [QWEN2_AUDIO, VOXTRAL])
def test_what_is_left_out_is_the_defaults(values: dict[str, Any]) -> None:
    bare = values | {"audio_config": {"model_type": values["audio_config"]["model_type"]}}
    assert heard(read(bare)) == heard(read(values))


@pytest.mark.parametrize("values", [QWEN2_AUDIO, VOXTRAL])
def test_without_ears(values: dict[str, Any]) -> None:
    config = read(values, language_model_only=True)
    assert not config.takes_media


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (QWEN2_AUDIO, {"scale_embedding": True}, "scale_embedding"),
    (QWEN2_AUDIO, {"max_source_positions": 1501}, "an even number"),
    (QWEN2_AUDIO, {"max_source_positions": 0}, "1 to 65536"),
    (QWEN2_AUDIO, {"encoder_attention_heads": 7}, "don't divide"),
    (QWEN2_AUDIO, {"activation_function": "tanh"}, "activation_function"),
    (QWEN2_AUDIO, {"num_mel_bins": 1 << 40}, "num_mel_bins"),
    (QWEN2_AUDIO, {"encoder_layers": 1 << 40}, "num_layers"),
    (VOXTRAL, {"intermediate_size": 5000}, "a divisor of max_source_positions"),
    (VOXTRAL, {"num_key_value_heads": 4}, "num_key_value_heads"),
    (VOXTRAL, {"head_dim": 32}, "head_dim"),
]


@pytest.mark.parametrize(("values", "changes", "words"), WRONG)
def test_towers_that_arent_served(
    values: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        read(values | {"audio_config": values["audio_config"] | changes})


def test_other_decoders() -> None:
    other = QWEN2_AUDIO | {"text_config": {"model_type": "mamba"}}
    with pytest.raises(UnsupportedModel, match="not served behind the tower of Qwen2-Audio"):
        read(other)
