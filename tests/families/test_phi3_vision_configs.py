"""Phi-3-vision's files: the makers' config.json of a release, Phi-3.5-vision's and their settings
of pictures, written from memory, and what a stranger may write."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from penstock.errors import InvalidRequest, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.pixels import Pixels
from penstock.forms.sheets import BarredImages
from penstock.media.changes import facts_with
from penstock.media.layout import layout
from penstock.model.config import ModelConfig
from penstock.model.media_facts import MediaFacts
from penstock.model.projector_spec import SheetProjector
from penstock.model.tower_spec import LearnedPositions
from penstock.prepare.hub_config import read_config
from penstock.prepare.media import read_media
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.phi3_pictures import MEAN, STD
from tests.shared.releases.reading import RELEASES

PHI3: dict[str, Any] = RELEASES["copy/phi3_v"]["config"]
PHI3_5: dict[str, Any] = copy.deepcopy(PHI3) | {
    "_name_or_path": "Phi-3.5-vision-instruct",
    "pad_token_id": 32_000,
    "sliding_window": 262_144,
    "_attn_implementation": "flash_attention_2",
}
PREPROCESSOR: dict[str, Any] = {
    "auto_map": {
        "AutoImageProcessor": "processing_phi3_v.Phi3VImageProcessor",
        "AutoProcessor": "processing_phi3_v.Phi3VProcessor",
    },
    "image_mean": list(MEAN),
    "image_processor_type": "Phi3VImageProcessor",
    "image_std": list(STD),
    "num_crops": 4,
    "num_img_tokens": 144,
    "processor_class": "Phi3VProcessor",
}


def changed(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """path: of keys, with two underscores between them."""
    made = copy.deepcopy(values)
    *sections, key = path.split("__")
    inner = made
    for each in sections:
        inner = inner.setdefault(each, {})
    inner[key] = value
    return made


def read(values: dict[str, Any], **options: bool) -> ModelConfig:
    return read_config(Fields(values, "config.json"), **options)


@pytest.mark.parametrize("values", [PHI3, PHI3_5], ids=["3", "3.5"])
def test_what_it_is_made_of(values: dict[str, Any]) -> None:
    config = read(values)
    assert (config.architecture, config.num_layers, config.head_dim) == ("phi3", 32, 96)
    scaling = config.ropes[0].scaling
    assert scaling is not None
    assert (scaling.kind, scaling.original_max_position) == ("longrope", 4096)
    vision = config.vision
    assert vision is not None
    tower = vision.tower
    assert (tower.num_layers, tower.unread_layers, tower.num_heads) == (23, 1, 16)
    assert (tower.hidden_size, tower.intermediate_size, tower.patch) == (1024, 4096, 14)
    assert (tower.activation, tower.norm.eps, tower.last_norm) == ("quick_gelu", 1e-5, False)
    assert (tower.class_token, tower.keeps_class) == (True, False)
    assert tower.positions == LearnedPositions(side=24)
    assert (vision.projector, vision.image_size) == (SheetProjector(whole=True), 336)
    assert vision.patches_in_row == 4
    assert not read(values, language_model_only=True).takes_media


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("embd_layer", None, "embedding_cls"),
        ("embd_layer__hd_transform_order", "glb_sub", "hd_transform_order is 'glb_sub'; sub_glb"),
        ("embd_layer__projection_cls", "linear", "projection_cls"),
        ("embd_layer__use_hd_transform", False, "use_hd_transform is False; true is needed"),
        ("embd_layer__with_learnable_separator", 1.5, "with_learnable_separator"),
        ("img_processor__name", "siglip_vision_model", "name"),
        ("img_processor__model_name", "openai/clip-vit-base-patch32", "model_name"),
        ("img_processor__type_feature", "cls_patch", "type_feature"),
        ("img_processor__layer_idx", 25, "layer 25 is taken, and there are 24"),
        ("img_processor__image_dim_out", 768, "image_dim_out"),
        ("img_processor__num_img_tokens", 256, "num_img_tokens"),
        ("vision_config__image_size", 350, "multiple of 2 patches"),
        ("vision_config__num_channels", 1, "num_channels"),
        ("model_type", "llama", "phi3_v are"),
    ],
)
def test_what_the_makers_code_could_do_is_refused(path: str, value: Any, named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(changed(PHI3, path, value))


def tokens() -> Tokenizer:
    made = tokenizer()
    assert made.token_to_id("<|image|>") is not None
    return made


def media_of(folder: Path, config: dict[str, Any], said: dict[str, Any]) -> MediaFacts:
    """said: preprocessor_config.json."""
    made = tokens()
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    fields = Fields(config | {"bos_token_id": made.token_to_id("<s>")}, "config.json")
    found = read_media(folder, fields, made.to_str().encode())
    assert found is not None
    return found


def test_pictures_of_phi3_vision_are_prepared_as_its_files_say(tmp_path: Path) -> None:
    """How many embeddings they are is what a test of transformers.js counts with the release."""
    facts = media_of(tmp_path, PHI3, PREPROCESSOR)
    own = facts.kinds["image"]
    assert (own.token, own.placeholder, own.before, own.behind) == ("<|image|>",) * 2 + ("", "<s>")
    pixels = Pixels(resample=2, rescale=1 / 255, mean=MEAN, std=STD)
    assert own.preparation == BarredImages(pixels=pixels, tile=336, patch=14, most=4)
    sizes = ((224, 224), (640, 1280))
    assert [layout(facts, "image", size).rows for size in sizes] == [757, 457]
    more = media_of(tmp_path, PHI3, PREPROCESSOR | {"num_crops": 16})
    assert [layout(more, "image", size).rows for size in sizes] == [2509, 2353]
    fewer = facts_with(more, {}, {"num_crops": 4}, ("image",))
    assert fewer == facts
    with pytest.raises(InvalidRequest, match="num_crops"):
        facts_with(facts, {}, {"num_crops": 0}, ("image",))
    with pytest.raises(InvalidRequest, match=r"dynamic_hd can't be changed .* num_crops"):
        facts_with(facts, {}, {"dynamic_hd": 4}, ("image",))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_crops": 0}, "num_crops"),
        ({"num_crops": 65}, "num_crops"),
        ({"num_img_tokens": 256}, "num_img_tokens"),
        ({"image_std": [0.5, 0.5, 0.0]}, "image_std"),
        ({"sharpened": True}, "sharpened is not known"),
    ],
)
def test_settings_of_phi3_vision_that_cant_be_followed_are_refused(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        media_of(tmp_path, PHI3, PREPROCESSOR | changes)


def test_a_tokenizer_without_the_token(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    text = tokens().to_str().replace("<|image|>", "<|nothing|>")
    with pytest.raises(UnsupportedModel, match=r"lacks the special token <\|image\|>"):
        read_media(tmp_path, Fields(PHI3, "config.json"), text.encode())
