"""config.json of CLIP and SigLIP: as releases have it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedImages
from penstock.model.pooling_config import TextPadding
from penstock.model.projector_spec import ClassProjector, ProbeProjector
from penstock.prepare.from_hub_folder import read_hub_folder
from penstock.prepare.hub_encoder_config import is_encoder, read_encoder_config
from tests.shared.families.release_configs import release
from tests.worker.pooling.space_models import write_clip, write_siglip

DUMPED: dict[str, Any] = {
    "_name_or_path": "",
    "add_cross_attention": False,
    "attention_dropout": 0.0,
    "chunk_size_feed_forward": 0,
    "diversity_penalty": 0.0,
    "dropout": 0.0,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "initializer_factor": 1.0,
    "initializer_range": 0.02,
    "is_decoder": False,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "layer_norm_eps": 1e-05,
    "length_penalty": 1.0,
    "max_length": 20,
    "num_beam_groups": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "pruned_heads": {},
    "repetition_penalty": 1.0,
    "return_dict": True,
    "temperature": 1.0,
    "tie_word_embeddings": True,
    "top_k": 50,
    "top_p": 1.0,
    "transformers_version": "4.16.0.dev0",
    "typical_p": 1.0,
}
"""What old releases of transformers wrote into every section."""
CLIP = release("others", "clip")
LARGE = CLIP | {
    "projection_dim": 768,
    "text_config_dict": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "projection_dim": 768,
    },
    "vision_config_dict": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
        "projection_dim": 768,
    },
}
SIGLIP = release("others", "siglip")


def read(values: dict[str, Any], **more: Any) -> Any:
    fields = Fields(values, "config.json")
    assert is_encoder(fields)
    return read_encoder_config(fields, **more)


def test_clip_base_is_read() -> None:
    config = read(CLIP)
    assert (config.num_layers, config.hidden_size, config.max_position) == (12, 512, 77)
    assert config.causal
    assert config.layers.layers[0].feed_forward.activation == "quick_gelu"
    assert config.space.size == config.row_size == 512
    assert config.space.token == "highest", "the first releases state another token as the end"
    tower = config.vision.tower
    assert (tower.patch, tower.hidden_size, tower.class_token) == (32, 768, True)
    assert isinstance(config.vision.projector, ClassProjector)
    assert config.vision.patches_in_row == 49


def test_older_sections_come_before_the_others_with_the_classs_defaults() -> None:
    config = read(LARGE)
    assert (config.hidden_size, config.space.size) == (768, 768)
    assert (config.space.token, config.space.end_token) == ("end", 49407)
    assert (config.vision.tower.num_layers, config.vision.image_size) == (24, 224)


def test_siglip_is_read_with_what_its_class_says() -> None:
    config = read(SIGLIP)
    assert (config.vocab_size, config.max_position, config.causal) == (32000, 64, False)
    space = config.space
    assert (space.size, space.bias, space.padded, space.token) == (1152, True, True, "last")
    assert isinstance(space.vision.projector, ProbeProjector)
    assert space.vision.tower.last_norm


def test_pictures_can_be_left_out() -> None:
    config = read(SIGLIP, language_model_only=True)
    assert config.vision is None
    assert not config.takes_media
    assert config.space.size == 1152


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (CLIP | {"architectures": ["CLIPTextModelWithProjection"]}, "CLIPModel is"),
        (CLIP | {"projection_dim": 0}, "projection_dim is 0"),
        (CLIP | {"text_config": {"hidden_act": "relu"}}, "'relu' is not served"),
        (CLIP | {"text_config": {"max_position_embeddings": 1 << 20}}, "1 to 65536"),
        (CLIP | {"text_config": {"num_attention_heads": 7}}, "don't divide"),
        (SIGLIP | {"architectures": ["SiglipForImageClassification"]}, "SiglipModel is"),
        (
            SIGLIP | {"vision_config": SIGLIP["vision_config"] | {"vision_use_head": False}},
            "vision_use_head",
        ),
        (
            SIGLIP | {"text_config": SIGLIP["text_config"] | {"projection_size": 96}},
            "must have as many",
        ),
    ],
)
def test_what_cant_be_computed_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read(values)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_folder_says_what_fills_texts_up(tmp_path: Path, side: str) -> None:
    model = write_siglip(tmp_path / "m", side=side)
    found = read_hub_folder(model.folder)
    pad = model.tokens.pad_token_id
    assert found.pooling is not None
    assert found.pooling.padding == TextPadding(token=pad, length=20, left=side == "left")
    ids = model.tokens("w5 w6")["input_ids"]
    assert found.pooling.padding.filled(ids) == model.ids("w5 w6")
    assert found.media is not None
    assert found.media.alone
    assert found.media.in_front is None


def test_a_folder_without_a_padding_token_is_refused(tmp_path: Path) -> None:
    folder = write_siglip(tmp_path / "m").folder
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    with pytest.raises(UnsupportedModel, match="names no pad_token"):
        read_hub_folder(folder)


def test_pictures_of_another_size_than_the_models_are_refused(tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "m").folder
    file = folder / "preprocessor_config.json"
    stated = json.loads(file.read_text())
    assert isinstance(read_hub_folder(folder).media.kinds["image"].preparation, FixedImages)  # type: ignore[union-attr]
    file.write_text(json.dumps(stated | {"crop_size": {"height": 32, "width": 32}}))
    with pytest.raises(UnsupportedModel, match="the model takes 28"):
        read_hub_folder(folder)
