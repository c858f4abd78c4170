"""config.json of models that hear, in the form that releases have it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.families.qwen3_asr import lifted
from penstock.formats.fields import Fields
from penstock.model.audio_spec import (
    AudioSpec,
    AudioTowerSpec,
    BlockConformerSpec,
    BlockTowerSpec,
    ConformerSpec,
    WaveformSpec,
)
from penstock.model.config import ModelConfig
from penstock.model.sound_projector_spec import (
    EmbedderProjector,
    LinearProjector,
    NarrowProjector,
    NormedProjector,
    QueryProjector,
    StackProjector,
)
from penstock.prepare.hub_config import read_config
from tests.shared.families.release_configs import release
from tests.shared.families.test_real_configs import CONFIGS
from tests.shared.releases.reading import RELEASES

GRANITE_SPEECH = release("audio", "granite-speech-3.3-2b")
QWEN2_AUDIO = release("audio", "qwen2-audio-7b")
QWEN3_ASR = release("audio", "qwen3-asr")
VOXTRAL = release("audio", "voxtral-mini-3b")


def read(values: dict[str, Any], **options: bool) -> ModelConfig:
    return read_config(Fields(values, "config.json"), **options)


def whisper(audio: AudioSpec) -> AudioTowerSpec:
    assert isinstance(audio.tower, AudioTowerSpec)
    return audio.tower


def heard(config: ModelConfig) -> AudioSpec:
    assert config.audio is not None
    return config.audio


def test_qwen2_audio() -> None:
    config = read(QWEN2_AUDIO)
    audio = heard(config)
    assert (config.architecture, config.num_layers, config.hidden_size) == ("qwen2", 32, 4096)
    assert (config.vocab_size, config.intermediate_size) == (156032, 11008)
    tower = whisper(audio)
    assert (tower.hidden_size, tower.num_layers, tower.positions) == (1280, 32, 1500)
    assert (audio.row_frames, audio.rows(1, 3000), audio.cut) == (4, 750, True)
    assert audio.projector == LinearProjector()


def test_voxtral() -> None:
    config = read(VOXTRAL)
    audio = heard(config)
    assert (config.architecture, config.num_layers, config.head_dim) == ("llama", 30, 128)
    assert (audio.row_frames, audio.rows(1, 3000), audio.cut) == (8, 375, False)
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


def test_qwen3_asr() -> None:
    config = read_config(lifted(Fields(QWEN3_ASR, "config.json")))
    audio = heard(config)
    assert (config.architecture, config.num_layers, config.head_dim) == ("qwen3", 28, 128)
    assert (config.ropes[0].theta, config.tie_word_embeddings) == (1e6, True)
    assert isinstance(audio.tower, BlockTowerSpec)
    assert (audio.tower.block, audio.tower.seen, audio.tower.channels) == (100, 8, 480)
    assert [audio.rows(1, frames) for frames in (1, 50, 100, 3000)] == [1, 7, 13, 390]
    assert audio.projector == NarrowProjector()


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("audio_config", {"n_window": 40}, "n_window is 40; 50 is needed"),
        ("audio_config", {"n_window_infer": 850}, "a multiple of 100"),
        ("audio_config", {"n_window_infer": 50}, "a multiple of 100"),
        ("audio_config", {"output_dim": 1024}, "2048, the decoder's hidden size"),
        ("audio_config", {"max_position_embeddings": 12}, "13 at least"),
        ("audio_config", {"scale_embedding": True}, "scale_embedding"),
        ("text_config", {"model_type": "llama"}, "not served behind the tower of Qwen3-ASR"),
        (None, {"classify_num": 5000}, "says when words are spoken"),
    ],
)
def test_variants_of_qwen3_asr_that_arent_served(
    section: str | None, changes: dict[str, Any], words: str
) -> None:
    thinker = dict(QWEN3_ASR["thinker_config"])
    if section is None:
        thinker |= changes
    else:
        thinker[section] = thinker[section] | changes
    with pytest.raises(UnsupportedModel, match=words):
        read_config(lifted(Fields(QWEN3_ASR | {"thinker_config": thinker}, "config.json")))


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


def test_gemma_4_sees_and_hears() -> None:
    config = read_config(Fields(RELEASES["google/gemma-4-E2B-it"]["config"], "config.json"))
    assert config.vision is not None
    assert config.audio is not None
    tower = config.audio.tower
    assert isinstance(tower, ConformerSpec)
    assert (tower.num_layers, tower.window, tower.mel_bins, tower.outputs) == (12, 12, 128, 1536)
    assert config.audio.row_frames == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_context_right": 2}, "attention_context_right"),
        ({"attention_chunk_size": 20}, "attention_chunk_size"),
        ({"attention_logit_cap": -1.0}, "attention_logit_cap"),
        ({"subsampling_conv_channels": [128]}, "two numbers"),
        ({"subsampling_conv_channels": [126, 32]}, "multiple of 4"),
        ({"conv_kernel_size": 10**9}, "conv_kernel_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_attention_heads": 7}, "heads"),
    ],
)
def test_conformers_that_arent_served(changes: dict[str, Any], words: str) -> None:
    values = RELEASES["google/gemma-4-E2B-it"]["config"]
    values = values | {"audio_config": values["audio_config"] | changes}
    with pytest.raises(UnsupportedModel, match=words):
        read_config(Fields(values, "config.json"))


def test_gemma_4_12b_sees_and_hears() -> None:
    config = read(RELEASES["google/gemma-4-12B"]["config"])
    assert config.vision is not None
    audio = heard(config)
    assert audio == AudioSpec(tower=WaveformSpec(frame=640), projector=NormedProjector(eps=1e-6))
    assert [audio.takes(1, 1), audio.takes(2, 1), audio.rows(1, 750)] == [True, False, 750]
    for section in ({"model_type": "gemma4_unified_audio"}, {"hidden_size": 640}):
        said = RELEASES["google/gemma-4-12B"]["config"] | {"audio_config": section}
        assert heard(read(said)) == audio
    deaf = read(RELEASES["google/gemma-4-12B"]["config"] | {"audio_config": None})
    assert (deaf.audio, deaf.vision) == (None, config.vision)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"audio_embed_dim": 0}, "audio_embed_dim is 0; 1 to 65536"),
        ({"audio_embed_dim": 10**9}, "audio_embed_dim"),
        ({"audio_samples_per_token": 320}, "audio_samples_per_token is 320"),
        ({"output_proj_dims": 3840}, "output_proj_dims is 3840"),
        ({"hidden_size": 1}, "hidden_size is 1"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
    ],
)
def test_frames_of_samples_that_arent_served(changes: dict[str, Any], words: str) -> None:
    values = RELEASES["google/gemma-4-12B"]["config"]
    with pytest.raises(UnsupportedModel, match=words):
        read(values | {"audio_config": values["audio_config"] | changes})


GEMMA3N: dict[str, Any] = CONFIGS["gemma-3n-e2b"] | {
    "audio_config": {
        "conf_attention_chunk_size": 12,
        "conf_attention_context_left": 13,
        "conf_attention_context_right": 0,
        "conf_attention_logit_cap": 50.0,
        "conf_conv_kernel_size": 5,
        "conf_num_attention_heads": 8,
        "conf_num_hidden_layers": 12,
        "conf_positional_bias_size": 256,
        "conf_reduction_factor": 4,
        "conf_residual_weight": 0.5,
        "gradient_clipping": 10000000000.0,
        "hidden_size": 1536,
        "input_feat_size": 128,
        "model_type": "gemma3n_audio",
        "rms_norm_eps": 1e-06,
        "sscp_conv_channel_size": [128, 32],
        "sscp_conv_eps": 0.001,
        "sscp_conv_group_norm_eps": 0.001,
        "sscp_conv_kernel_size": [[3, 3], [3, 3]],
        "sscp_conv_stride_size": [[2, 2], [2, 2]],
        "torch_dtype": "bfloat16",
        "vocab_offset": 262272,
        "vocab_size": 128,
    },
    "audio_token_id": 262273,
    "boa_token_id": 256000,
    "boi_token_id": 255999,
    "eoa_token_id": 262272,
    "eoi_token_id": 262144,
    "image_token_id": 262145,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "vision_soft_tokens_per_image": 256,
}
"""Written from memory: no release's file could be had."""


def test_gemma_3n() -> None:
    config = read(GEMMA3N)
    audio = heard(config)
    assert (config.architecture, config.num_layers) == ("gemma3n", 30)
    assert config.per_layer_inputs is not None
    assert config.per_layer_inputs.media_id == 0
    assert isinstance(audio.tower, ConformerSpec)
    assert (audio.tower.num_layers, audio.tower.window, audio.tower.every) == (12, 13, 4)
    projector = EmbedderProjector(eps=1e-6, vocab=128, filler=127, end=0, vectors=188)
    assert audio.projector == projector
    assert [audio.rows(1, frames) for frames in (1, 2997)] == [189, 189]
    assert [audio.takes(1, frames) for frames in (2997, 3008, 3009)] == [True, True, False]
    assert heard(read(GEMMA3N | {"audio_config": {"model_type": "gemma3n_audio"}})) == audio


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("audio_config", {"conf_attention_context_right": 2}, "conf_attention_context_right"),
        ("audio_config", {"sscp_conv_stride_size": [[2, 2], [1, 2]]}, "sscp_conv_stride_size"),
        ("audio_config", {"sscp_conv_channel_size": [128]}, "two numbers"),
        ("audio_config", {"conf_attention_logit_cap": 0.0}, "conf_attention_logit_cap"),
        ("audio_config", {"conf_num_attention_heads": 7}, "heads"),
        ("audio_config", {"vocab_offset": 262273}, "eoa_token_id"),
        ("audio_config", {"vocab_size": 64}, "less than vocab_size of the decoder"),
        (None, {"audio_token_id": 7}, "vocab_size_per_layer_input, or more"),
        (None, {"audio_soft_tokens_per_image": 0}, "audio_soft_tokens_per_image"),
    ],
)
def test_variants_of_gemma_3n_that_arent_served(
    section: str | None, changes: dict[str, Any], words: str
) -> None:
    changed = changes if section is None else {section: GEMMA3N[section] | changes}
    with pytest.raises(UnsupportedModel, match=words):
        read(GEMMA3N | changed)


def test_granite_speech() -> None:
    config = read(GRANITE_SPEECH)
    audio = heard(config)
    assert (config.architecture, config.num_layers, config.tie_word_embeddings) == (
        "granite",
        40,
        True,
    )
    tower, projector = audio.tower, audio.projector
    assert isinstance(tower, BlockConformerSpec)
    assert (tower.mel_bins, tower.num_layers, tower.head_dim, tower.block) == (80, 16, 128, 200)
    assert (tower.intermediate_size, tower.channels, tower.reach) == (4096, 2048, 15)
    assert isinstance(projector, QueryProjector)
    assert (projector.window, projector.queries, projector.num_layers) == (15, 3, 2)
    assert [audio.rows(1, frames) for frames in (2, 30, 32, 3000)] == [3, 3, 6, 300]
    assert not audio.takes(1, 3)


def test_what_granite_speech_leaves_out_is_the_defaults() -> None:
    kept = ("num_layers", "output_dim")
    encoder = {key: GRANITE_SPEECH["encoder_config"][key] for key in kept}
    left = ("window_size", "downsample_rate", "encoder_config")
    bare = {key: value for key, value in GRANITE_SPEECH.items() if key not in left}
    assert heard(read(bare | {"encoder_config": encoder})) == heard(read(GRANITE_SPEECH))


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("encoder_config", {"input_dim": 161}, "an even number"),
        ("encoder_config", {"context_size": 600}, "512 at most"),
        ("encoder_config", {"num_heads": 7, "dim_head": None}, "don't divide"),
        ("encoder_config", {"conv_kernel_size": 10**9}, "conv_kernel_size"),
        ("projector_config", {"encoder_hidden_size": 512}, "encoder_hidden_size"),
        ("projector_config", {"hidden_act": "relu"}, "hidden_act"),
        ("projector_config", {"num_attention_heads": 7}, "don't divide"),
        ("text_config", {"model_type": "llama"}, "not served behind the tower of Granite Speech"),
        (None, {"downsample_rate": 4}, "a divisor of window_size, 15"),
    ],
)
def test_variants_of_granite_speech_that_arent_served(
    section: str | None, changes: dict[str, Any], words: str
) -> None:
    values = GRANITE_SPEECH | changes
    if section is not None:
        values = GRANITE_SPEECH | {section: GRANITE_SPEECH[section] | changes}
    with pytest.raises(UnsupportedModel, match=words):
        read(values)
