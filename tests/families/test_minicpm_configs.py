"""config.json of MiniCPM-V 2.6, 4.0 and 4.5 and MiniCPM-o 2.6, written from memory, and settings of
their pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.sliced import SlicedImages
from penstock.model.projector_spec import ResamplerProjector
from penstock.model.tower_spec import LearnedPositions
from penstock.prepare.media import read_media
from tests.families.test_multi_modality_configs import read
from tests.shared.families.release_configs import release
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.minicpm_pictures import MARK, MiniCPMPictures

V26 = release("others", "minicpm-v-2.6")
O26 = V26 | {
    "architectures": ["MiniCPMO"],
    "audio_config": {"d_model": 1024, "model_type": "whisper"},
    "audio_pool_step": 2,
    "init_audio": True,
    "init_tts": True,
    "init_vision": True,
    "model_type": "minicpmo",
    "tts_config": {"model_type": "conditional_chattts"},
    "version": "2.6",
    "vocab_size": 151700,
}
V40 = V26 | {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "version": 4.0,
    "vocab_size": 73448,
}
V45 = V26 | {
    "batch_3d_resampler": True,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "version": 4.5,
    "vocab_size": 151748,
}


def test_towers_and_resamplers_of_minicpm_are_read() -> None:
    for values, decoder, heads in (
        (V26, "qwen2", 28),
        (O26, "qwen2", 28),
        (V40, "llama", 20),
        (V45, "qwen3", 32),
    ):
        found = read(values)
        assert found.architecture == decoder
        vision = found.vision
        assert vision is not None
        tower = vision.tower
        assert (tower.hidden_size, tower.num_layers, tower.head_dim) == (1152, 27, 72)
        assert (tower.activation, tower.last_norm, tower.patch_bias) == ("gelu_tanh", True, True)
        assert tower.positions == LearnedPositions(side=70, fractional=True)
        assert vision.projector == ResamplerProjector(queries=64, num_heads=heads, side=32)
        assert (vision.image_size, vision.patches_in_row) == (None, 16)


def test_what_is_not_said_is_as_in_the_makers_code() -> None:
    """Its class leaves the tower's last layer out, and has a tower of its own."""
    bare = {key: value for key, value in V26.items() if key not in ("query_num", "image_size")}
    del bare["drop_vision_last_layer"], bare["vision_config"]
    usual, found = read(V26).vision, read(bare).vision
    assert usual is not None
    assert found is not None
    assert (found.tower.num_layers, found.tower.unread_layers) == (26, 0)
    assert found.tower.intermediate_size == 4304
    assert found.projector == usual.projector


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"version": 2.5}, "version is 2.5; 2.6 or 4.0 or 4.5 is needed"),
        ({"version": None}, "version is None"),
        ({"version": [2.6]}, "version is"),
        ({"query_num": 0}, "query_num is 0; 1 to 4096"),
        ({"query_num": 10**9}, "query_num"),
        ({"hidden_size": 3520, "head_dim": 128}, "hidden_size is 3520; a multiple of 128"),
        ({"image_size": 0}, "image_size is 0"),
        ({"vision_config__image_size": 10**9}, "image_size"),
        ({"vision_config__num_attention_heads": 17}, "17 attention heads"),
        ({"vision_config__num_channels": 1}, "num_channels"),
        (
            {"vision_config__num_hidden_layers": 1, "drop_vision_last_layer": True},
            "drop_vision_last_layer is True; false, for a tower of one layer",
        ),
        ({"init_vision": False}, "init_vision"),
    ],
)
def test_senseless_settings_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(V26, **changes)


def test_pictures_of_minicpm_are_prepared_as_its_files_say(tmp_path: Path) -> None:
    MiniCPMPictures(14, 448, 64).save_pretrained(tmp_path)
    words = tokenizer("<unk>").to_str().encode()
    facts = read_media(tmp_path, Fields(O26, "config.json"), words)
    assert facts is not None
    own = facts.kinds["image"]
    assert (own.placeholder, own.token) == (MARK, "<unk>")
    assert own.numbered == ("<image_id>", "</image_id>")
    assert isinstance(own.preparation, SlicedImages)
    assert (own.preparation.square, own.preparation.queries, own.preparation.most) == (14, 64, 9)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"image_feature_size": 96}, "image_feature_size is 96; 64 is needed"),
        ({"slice_start": "<tile>"}, "slice_start"),
        ({"patch_size": 16}, "patch_size is 16; what the vision tower has"),
        ({"scale_resolution": 0}, "scale_resolution is 0"),
        ({"max_slice_nums": 10**9}, "max_slice_nums"),
        ({"norm_std": [0.0, 0.5, 0.5]}, "image_std"),
        ({"sharpened": True}, "sharpened is not known"),
    ],
)
def test_settings_of_minicpm_that_cant_be_followed_are_refused(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    MiniCPMPictures(14, 448, 64).save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(UnsupportedModel, match=named):
        read_media(tmp_path, Fields(V26, "config.json"), tokenizer("<unk>").to_str().encode())


def test_a_vocabulary_without_the_token_of_an_embedding(tmp_path: Path) -> None:
    MiniCPMPictures(14, 448, 64).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="lacks the special token <unk>"):
        read_media(tmp_path, Fields(V26, "config.json"), tokenizer().to_str().encode())
