"""config.json of Qwen3-Omni 30B-A3B and Qwen2.5-Omni 7B, written from memory in their makers' form,
and what one file of theirs says of pictures and sounds."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.families.qwen3_asr import lifted
from penstock.formats.fields import Fields
from penstock.forms.patches import PatchImages
from penstock.model.audio_spec import AudioTowerSpec, BlockTowerSpec
from penstock.model.config import ModelConfig
from penstock.model.sound_facts import BlockMel, LogMel
from penstock.model.sound_projector_spec import LinearProjector, NarrowProjector
from penstock.model.tower_spec import RotaryPositions, WindowSpec
from penstock.prepare.hub_config import read_config
from penstock.prepare.hub_pooling import read_pooling
from penstock.prepare.media import read_media
from tests.shared.families.release_configs import release
from tests.shared.media.media_tokenizer import tokenizer

QWEN3_ASR = release("audio", "qwen3-asr")

HEARS: dict[str, Any] = QWEN3_ASR["thinker_config"]["audio_config"]
OMNI = release("others", "qwen3-omni")
BOTH: dict[str, Any] = {
    "chunk_length": 300,
    "dither": 0.0,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "hop_length": 160,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "max_pixels": 12845056,
    "merge_size": 2,
    "min_pixels": 3136,
    "n_fft": 400,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "left",
    "padding_value": 0.0,
    "patch_size": 16,
    "processor_class": "Qwen3OmniMoeProcessor",
    "return_attention_mask": True,
    "sampling_rate": 16000,
    "temporal_patch_size": 2,
}
"""preprocessor_config.json."""


OMNI_2_5 = release("others", "qwen2.5-omni")
BOTH_2_5 = BOTH | {"patch_size": 14, "processor_class": "Qwen2_5OmniProcessor"}


def read(section: str = "", omni: dict[str, Any] = OMNI, **changes: Any) -> ModelConfig:
    """changes: of what listens and writes, or of a section of it."""
    values = copy.deepcopy(omni)
    inner = values["thinker_config"]
    (inner[section] if section else inner).update(changes)
    return read_config(lifted(Fields(values, "config.json")))


def test_what_it_is_made_of() -> None:
    config = read()
    assert (config.architecture, config.num_layers, config.head_dim) == ("qwen3_moe", 48, 128)
    (rope,) = config.ropes
    assert (rope.sections, rope.interleaved, rope.theta) == ((24, 20, 20), True, 1e6)
    vision, audio = config.vision, config.audio
    assert vision is not None
    assert audio is not None
    assert vision.deepstack_layers == (8, 16, 24)
    assert vision.tower.positions == RotaryPositions(table=48)
    assert config.media_width == 4 * 2048
    assert isinstance(audio.tower, BlockTowerSpec)
    assert (audio.tower.num_layers, audio.tower.block, audio.tower.seen) == (32, 100, 8)
    assert (audio.tower.short_alone, audio.projector) == (True, NarrowProjector())


def test_what_the_older_one_is_made_of(tmp_path: Path) -> None:
    config = read(omni=OMNI_2_5)
    assert (config.architecture, config.num_layers, config.head_dim) == ("qwen2", 28, 128)
    assert not config.tie_word_embeddings
    (rope,) = config.ropes
    assert (rope.sections, rope.interleaved, rope.theta) == ((16, 24, 24), False, 1e6)
    vision, audio = config.vision, config.audio
    assert vision is not None
    assert audio is not None
    assert vision.tower.windows == WindowSpec(side=8, whole=(7, 15, 23, 31))
    assert isinstance(audio.tower, AudioTowerSpec)
    assert (audio.tower.num_layers, audio.tower.block, audio.tower.pooled) == (32, 200, True)
    assert (audio.projector, audio.cut) == (LinearProjector(), True)
    assert [audio.rows(1, frames) for frames in (2, 3, 200, 201, 203)] == [0, 1, 50, 50, 51]
    assert not audio.takes(1, 2)
    # It writes, although its class is called a model.
    assert read_pooling(tmp_path, lifted(Fields(OMNI_2_5, "")), config) is None


@pytest.mark.parametrize(
    ("section", "changes", "named"),
    [
        ("audio_config", {"n_window": 1501}, "n_window is 1501; 1 to 1500 are allowed"),
        ("audio_config", {"output_dim": 2048}, "3584, the decoder's hidden size"),
        ("audio_config", {"d_model": 1281, "encoder_attention_heads": 1}, "an even number"),
        ("vision_config", {"fullatt_block_indexes": [32]}, "layers below 32"),
        ("text_config", {"model_type": "qwen3"}, "qwen2_5_omni_text are"),
    ],
)
def test_senseless_settings_of_the_older_one_are_refused(
    section: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(section, OMNI_2_5, **changes)


@pytest.mark.parametrize(
    ("section", "changes", "named"),
    [
        ("audio_config", {"n_window": 40}, "n_window is 40; 50 is needed"),
        ("audio_config", {"output_dim": 1024}, "2048, the decoder's hidden size"),
        ("audio_config", {"encoder_layers": 10**9}, "num_layers|encoder_layers"),
        ("vision_config", {"deepstack_visual_indexes": [27]}, "ascending layers below 27"),
        ("vision_config", {"num_position_embeddings": 2000}, "a square number"),
        ("vision_config", {"out_hidden_size": 3584}, "out_hidden_size"),
        ("text_config", {"sliding_window": 4096}, "sliding_window"),
        ("text_config", {"model_type": "qwen3"}, "qwen3_omni_moe_text are"),
        ("text_config", {"rope_scaling": {"mrope_section": [1, 1, 1]}}, "add up to 64"),
    ],
)
def test_senseless_settings_are_refused(section: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(section, **changes)


def facts(folder: Path, said: dict[str, Any], omni: dict[str, Any] = OMNI, end: str = "id") -> Any:
    """end: of the keys by which tokens of media are named."""
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    words = tokenizer()
    ids = {f"image_token_{end}": "<|image_pad|>", f"audio_token_{end}": "<|AUDIO|>"}
    values = copy.deepcopy(omni)
    values["thinker_config"] |= {key: words.token_to_id(text) for key, text in ids.items()}
    config = lifted(Fields(values, "config.json"))
    return read_media(folder, config, words.to_str().encode(), read_config(config).audio)


def test_one_file_about_pictures_and_sounds(tmp_path: Path) -> None:
    """No videos, whose positions go by time."""
    kinds = facts(tmp_path, BOTH).kinds
    assert set(kinds) == {"image", "audio"}
    shown, heard = kinds["image"].preparation, kinds["audio"].preparation
    assert isinstance(shown, PatchImages)
    assert (shown.patch, shown.merge, shown.max_pixels) == (16, 2, 12_845_056)
    assert isinstance(heard, BlockMel)
    assert (heard.block, heard.least, heard.bins, heard.seconds) == (100, 400, 128, 300)
    assert (kinds["image"].placeholder, kinds["audio"].token) == ("<|image_pad|>", "<|AUDIO|>")


def test_one_file_of_the_older_one(tmp_path: Path) -> None:
    kinds = facts(tmp_path, BOTH_2_5, OMNI_2_5, "index").kinds
    assert set(kinds) == {"image", "audio"}
    shown, heard = kinds["image"].preparation, kinds["audio"].preparation
    assert isinstance(shown, PatchImages)
    assert (shown.patch, shown.merge, shown.max_pixels) == (14, 2, 12_845_056)
    assert isinstance(heard, LogMel)
    assert (heard.seconds, heard.row_frames, heard.exact, heard.many) == (300, 4, True, False)
    assert (kinds["image"].token, kinds["audio"].token) == ("<|image_pad|>", "<|AUDIO|>")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"patch_size": 14}, "patch_size is 14; what the vision tower has"),
        ({"feature_size": 80}, "feature_size is 80"),
        ({"sharpened": True}, "sharpened is not known"),
        ({"hop_length": 0}, "hop_length"),
    ],
)
def test_settings_of_omni_that_cant_be_followed_are_refused(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        facts(tmp_path, BOTH | changes)
