"""What makers' own files say of pictures, or their code where there are none, as transformers has
it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import UnsupportedModel
from penstock.forms.patches import PatchImages
from penstock.forms.windowed import WindowedImages
from tests.shared.media.picture_families import FAMILIES
from tests.shared.media.picture_family import write_folder
from tests.shared.media.test_expansion import facts_of
from tests.shared.media.without_torchvision import class_of


def test_the_file_of_kimis_makers(tmp_path: Path) -> None:
    """It has other names than transformers', in a section, beside settings of videos."""
    write_folder(tmp_path, FAMILIES["kimi_k25"])
    plain = facts_of(tmp_path)
    own = {
        "config_type": "media_proc.processors.moonvit.MoonViTMediaProcessorConfig",
        "fixed_output_tokens": None,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "in_patch_limit": 40,
        "in_patch_limit_each_frame": 10,
        "merge_kernel_size": 2,
        "patch_limit_on_one_side": 9,
        "patch_size": 8,
        "sample_fps": 2.0,
        "temporal_merge_kernel_size": 4,
    }
    saved = tmp_path / "preprocessor_config.json"
    saved.write_text(json.dumps({"auto_map": {}, "media_proc_cfg": own}))
    assert facts_of(tmp_path) == plain
    saved.write_text(json.dumps({"media_proc_cfg": own | {"fixed_output_tokens": 64}}))
    with pytest.raises(UnsupportedModel, match="fixed_output_tokens"):
        facts_of(tmp_path)


def test_the_file_of_kimi_vls_makers(tmp_path: Path) -> None:
    """It may name its class, whose usual limit and colours are those of the makers' code."""
    write_folder(tmp_path, FAMILIES["kimi_vl"])
    plain, saved = facts_of(tmp_path), tmp_path / "preprocessor_config.json"
    own = json.loads(saved.read_text())
    named = {"image_processor_type": "KimiVLImageProcessor"}
    saved.write_text(json.dumps(own | named))
    assert facts_of(tmp_path) == plain
    saved.write_text(json.dumps(named | {"patch_size": 8, "pad_input": True}))
    found = facts_of(tmp_path)
    assert found is not None
    image = found.kinds["image"].preparation
    assert isinstance(image, PatchImages)
    assert (image.max_pixels, image.most_side) == (4096 * 64, 512)
    assert image.pixels.mean == (0.48145466, 0.4578275, 0.40821073)
    saved.write_text(json.dumps(own | {"fixed_output_tokens": 64}))
    with pytest.raises(UnsupportedModel, match="fixed_output_tokens"):
        facts_of(tmp_path)


def test_a_folder_of_steps_makers_has_no_settings(tmp_path: Path) -> None:
    """Its code has them built in, which are the defaults of transformers' class."""
    family = FAMILIES["step3p7"]
    write_folder(tmp_path, family)
    (tmp_path / "preprocessor_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"] = {"patch_size": 14, "image_size": 728}
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"image_token_len": 169, "patch_token_len": 81})
    )
    facts, theirs = facts_of(tmp_path), class_of("step3p7", "Step3p7ImageProcessor")
    assert facts is not None
    image = facts.kinds["image"].preparation
    assert isinstance(image, WindowedImages)
    assert (image.whole, image.tile) == (theirs.size["height"], theirs.patch_size)
    assert (image.longest, image.patch) == (theirs.max_image_size, theirs.vision_patch_size)
    assert (image.whole_rows, image.tile_rows) == (169, 81)
    assert image.pixels.resample == int(theirs.resample)
    assert image.pixels.mean == tuple(theirs.image_mean)


def test_the_file_of_minimaxs_makers(tmp_path: Path) -> None:
    """It names no class, and its size is none that a picture gets."""
    write_folder(tmp_path, FAMILIES["minimax_m3"])
    saved = tmp_path / "preprocessor_config.json"
    saved.write_text(json.dumps({"image_processor_type": "MiniMaxM3VLImageProcessor"}))
    plain = facts_of(tmp_path)
    own = {
        "processor_class": "MiniMaxVLProcessor",
        "process_image_mode": "dynamic_res",
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "size": [672, 672],
        "patch_size": 14,
        "img_token_compression_config": {
            "image_token_compression_threshold": 1.1,
            "image_token_compression_method": "patch_merge",
            "max_image_resolution": 1008,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "add_start_end_special_tokens": True,
    }
    saved.write_text(json.dumps(own))
    found = facts_of(tmp_path)
    assert found == plain
    assert found is not None
    image = found.kinds["image"].preparation
    assert isinstance(image, PatchImages)
    assert (image.min_pixels, image.max_pixels, image.frames) == (3136, 451_584, 2)
    for wrong in ({"process_image_mode": "anyres"}, {"img_token_compression_config": 2}):
        saved.write_text(json.dumps(own | wrong))
        with pytest.raises(UnsupportedModel, match=next(iter(wrong))):
            facts_of(tmp_path)
