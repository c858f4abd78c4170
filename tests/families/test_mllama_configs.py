"""Llama 3.2 Vision: its config.json, and how its pictures are prepared, against transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.aspects import AspectImages, aspect_forms
from penstock.model.mechanisms import PICTURE_LAYERS, mechanisms
from penstock.prepare.hub_config import read_config
from penstock.prepare.media import read_media
from tests.shared.families.release_configs import releases
from tests.shared.media.media_tokenizer import tokenizer

FROM_MEMORY = releases("newer_vision")

NAME = "llama-3.2-11b-vision"
SIDE = 28


def changed(path: str, value: Any) -> dict[str, Any]:
    values = json.loads(json.dumps(FROM_MEMORY[NAME]))
    *sections, key = path.split("__")
    section = values
    for each in sections:
        section = section[each]
    section[key] = value
    return values


def test_the_release() -> None:
    config = read_config(Fields(FROM_MEMORY[NAME], NAME))
    assert (config.vocab_size, config.num_layers, config.max_position) == (128_264, 40, 131_072)
    assert mechanisms(config) >= {PICTURE_LAYERS}
    seeing = [at for at in range(40) if config.layer(at).attention.sees_pictures]
    assert seeing == [3, 8, 13, 18, 23, 28, 33, 38]
    assert config.vision is not None
    tower = config.vision.tower
    assert (tower.width, config.vision.image_size, tower.aspects and tower.aspects.patches) == (
        7680,
        560,
        1600,
    )


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("text_config__cross_attention_layers", [40], "cross_attention_layers"),
        ("text_config__cross_attention_layers", [-1], "cross_attention_layers"),
        ("vision_config__intermediate_layers_indices", [3, 32], "intermediate_layers_indices"),
        ("vision_config__intermediate_layers_indices", [7, 3], "intermediate_layers_indices"),
        ("vision_config__max_num_tiles", 10**9, "max_num_tiles"),
        ("vision_config__supported_aspect_ratios", [[1, 1]], "supported_aspect_ratios"),
        ("vision_config__vision_output_dim", 1280, "vision_output_dim"),
        ("vision_config__num_global_layers", 10**9, "num_layers"),
    ],
)
def test_a_hostile_config_is_refused_by_name(path: str, value: Any, named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read_config(Fields(changed(path, value), NAME))


def form_of(folder: Path, **tower: Any) -> AspectImages:
    """What a folder says of pictures, with the settings that transformers' processor writes."""
    made = tokenizer("<|picture|>")
    made.save(str(folder / "tokenizer.json"))
    processor = MllamaImageProcessorPil(size={"height": SIDE, "width": SIDE})
    processor.save_pretrained(folder)
    values = {
        "architectures": ["MllamaForConditionalGeneration"],
        "image_token_index": made.token_to_id("<|picture|>"),
        "vision_config": {"image_size": SIDE, "patch_size": 7} | tower,
    }
    read = read_media(
        folder, Fields(values, "config.json"), (folder / "tokenizer.json").read_bytes()
    )
    assert read is not None
    form = read.kinds["image"].preparation
    assert isinstance(form, AspectImages)
    return form


SIZES = [(28, 28), (1, 1), (20, 90), (90, 20), (57, 56), (200, 3), (3, 200), (84, 30), (61, 130)]


@pytest.mark.parametrize("size", SIZES)
def test_pixels_and_forms_equal_transformers(size: tuple[int, int], tmp_path: Path) -> None:
    form = form_of(tmp_path)
    noise = np.random.default_rng(sum(size)).integers(0, 256, (*size, 3), np.uint8)
    picture = Image.fromarray(noise)
    theirs = MllamaImageProcessorPil.from_pretrained(tmp_path)([[picture]], return_tensors="np")
    made = form.prepare(picture)
    ours = form.inputs(made)
    count = int(theirs["num_tiles"][0][0])
    assert np.array_equal(ours["pixel_values"], theirs["pixel_values"][0, 0, :count])
    number = 1 + aspect_forms(4).index(tuple(ours["tile_grid"].tolist()))
    assert number == int(theirs["aspect_ratio_ids"][0, 0])
    assert form.runs(size).runs[0].rows == 17 * count + 1


@pytest.mark.parametrize(
    ("tower", "named"),
    [({"image_size": 56}, "size"), ({"max_num_tiles": 2}, "max_image_tiles")],
)
def test_settings_that_dont_fit_the_tower(
    tower: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        form_of(tmp_path, **tower)
