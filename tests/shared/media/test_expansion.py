"""A prompt with pictures becomes the token ids that transformers' processors make of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from penstock.errors import InvalidRequest, UnsupportedModel
from penstock.families.vision.served import VISION_FAMILIES
from penstock.formats.fields import Fields
from penstock.forms.registry import ImagePreparation
from penstock.forms.sheets import SheetImages
from penstock.media.changes import facts_with
from penstock.media.layout import ItemLayout, layout
from penstock.media.placeholders import ids_with_runs, uncounted, with_one, with_rows, with_runs
from penstock.model.media_facts import MediaFacts
from penstock.prepare.media import read_media
from penstock.text.tokenizer import Tokenizer
from tests.shared.media.lfm2_pictures import pages_of, parts_of, strip_of
from tests.shared.media.picture_families import FAMILIES
from tests.shared.media.picture_family import write_folder
from tests.shared.media.pictures import picture

TEXTS = (
    "{}",
    "abc {} ab",
    "\n{}\n",
    "{}{}",
    "\n\n{}\nabc\n\n{}\n\n\n",
    "a {} b {} c {}",
)


def facts_of(folder: Path) -> MediaFacts | None:
    config = Fields(json.loads((folder / "config.json").read_text()), "config.json")
    return read_media(folder, config, (folder / "tokenizer.json").read_bytes())


def tokens_of(folder: Path) -> Tokenizer:
    content = (folder / "tokenizer.json").read_bytes()
    return Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_pixels_and_spans(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    processor = write_folder(tmp_path, family)
    facts, tokenizer = facts_of(tmp_path), tokens_of(tmp_path)
    assert facts is not None
    own = facts.kinds["image"]
    image_preparation = own.preparation
    least = 20 if isinstance(image_preparation, SheetImages) else 1  # longer ones are refused
    for number, text in enumerate(TEXTS):
        prompt = text.replace("{}", family.mark)
        sizes = [(17 + 40 * i, 90 - 25 * number + i) for i in range(text.count("{}"))]
        images = [picture(max(width, least), max(height, least)) for width, height in sizes]
        theirs = processor(text=[prompt], images=images, return_tensors="np")
        layouts = [layout(facts, "image", (image.height, image.width)) for image in images]
        run_ids = tokenizer.encode(with_runs(prompt, facts, layouts))
        ids, spans = with_rows(run_ids, facts, layouts)
        assert ids == theirs["input_ids"][0].tolist(), text
        check_spans(ids, spans, facts, layouts)
        ours = [image_preparation.inputs(image_preparation.prepare(image)) for image in images]
        check_pixels(ours, theirs)


def test_every_family_is_compared() -> None:
    compared = {family.architecture for family in FAMILIES.values()}
    for name, family in VISION_FAMILIES.items():
        if name == "deepseek_ocr":  # transformers has no processor of it: see test_pages.py
            continue
        if name == "mllama":  # Its rows stand before its token: see families/test_mllama_configs.py
            continue
        assert compared & set(family.hub_classes), name


def test_crops_of_a_long_picture_follow_it(tmp_path: Path) -> None:
    """Gemma 3's pan and scan, which the operator can turn on."""
    family = FAMILIES["gemma3"]
    processor = write_folder(tmp_path, family)
    plain, tokenizer = facts_of(tmp_path), tokens_of(tmp_path)
    assert plain is not None
    settings = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 64}
    with pytest.raises(InvalidRequest, match="doesn't split"):
        facts_with(plain, {}, {"do_pan_and_scan": True}, ("image",))
    facts = facts_with(plain, settings, {"pan_and_scan_max_num_crops": 3}, ("image",))
    images = [picture(width, height) for width, height in ((70, 70), (300, 70), (64, 140))]
    prompt = "a {} b {} c {}".replace("{}", family.mark)
    theirs = processor(
        text=[prompt],
        images=[images],
        return_tensors="np",
        images_kwargs={**settings, "pan_and_scan_max_num_crops": 3},
    )
    layouts = [layout(facts, "image", (image.height, image.width)) for image in images]
    assert [len(one.runs) for one in layouts] == [1, 4, 3]
    ids, spans = with_rows(tokenizer.encode(with_runs(prompt, facts, layouts)), facts, layouts)
    assert ids == theirs["input_ids"][0].tolist()
    check_spans(ids, spans, facts, layouts)
    preparation = cast(ImagePreparation, facts.kinds["image"].preparation)
    check_pixels([preparation.inputs(preparation.prepare(image)) for image in images], theirs)


def check_spans(
    ids: list[int], spans: Any, facts: MediaFacts, layouts: Sequence[ItemLayout]
) -> None:
    """The spans are just the embeddings' tokens, in order, and each row of an item once."""
    covered = [at for span in spans for at in range(span.offset, span.offset + span.tokens)]
    own = {facts.kinds["image"].token_id} | {token for one in layouts for _, token in one.marked}
    assert covered == [at for at, token in enumerate(ids) if token in own]
    rows = [one.rows for one in layouts]
    met = [(s.item, s.first + i) for s in spans for i in range(s.tokens)]
    assert met == [(item, row) for item, count in enumerate(rows) for row in range(count)]


def check_pixels(ours: list[dict[str, np.ndarray]], theirs: Any) -> None:
    if "image_pixel_values" in theirs:  # Phi-4-multimodal's: see test_pixels.py
        for one, each in zip(ours, theirs["image_pixel_values"], strict=True):
            mine = one["pixel_values"]
            assert np.abs(mine - each[: len(mine)]).max() < 1e-5
        return
    if "num_img_tokens" in theirs:  # Phi-3-vision's: see test_pixels.py
        for one, each in zip(ours, theirs["pixel_values"], strict=True):
            assert np.abs(one["pixel_values"] - each).max() < 1e-5
        return
    if "high_res_pixel_values" in theirs:
        large = np.concatenate([one["large_pixel_values"] for one in ours])
        assert np.array_equal(large, theirs["high_res_pixel_values"].astype(np.float32))
    values = theirs["pixel_values"]
    if "pooled" in theirs:
        check_crops(ours, theirs)
        return
    if values.ndim in (4, 5) and "image_grid_thw" in theirs:
        values = values.reshape(-1, *values.shape[-3:])
        grids = theirs["image_grid_thw"].reshape(-1, 3)
        values = in_squares(values, grids, 2)
    if "num_local_patches" in theirs:
        patches, shapes = pages_of(theirs, 2)
        assert np.array_equal(np.concatenate([one["pixel_values"] for one in ours]), patches)
        assert np.concatenate([one["spatial_shapes"] for one in ours]).tolist() == shapes
        return
    if "target_sizes" in theirs:
        patches = np.concatenate([one["pixel_values"] for one in ours])
        assert np.array_equal(patches, strip_of(theirs, 4))
        assert np.array_equal(
            np.concatenate([one["spatial_shapes"] for one in ours]), theirs["target_sizes"]
        )
        return
    if "image_position_ids" in theirs:
        check_patches(ours, theirs)
        return
    if "spatial_shapes" in theirs:
        patches, shapes = parts_of(theirs, 4)
        assert np.array_equal(np.concatenate([one["pixel_values"] for one in ours]), patches)
        assert np.array_equal(np.concatenate([one["spatial_shapes"] for one in ours]), shapes)
        return
    if "image_sizes" in theirs:  # pictures of all sizes are filled up with zeros
        for one, each in zip(ours, values, strict=True):
            mine = one["pixel_values"]
            tiles = each if each.ndim == 4 else each[None]
            assert np.array_equal(mine, tiles[: len(mine), :, : mine.shape[2], : mine.shape[3]])
        return
    values = values[0] if values.ndim == 5 else values
    assert np.array_equal(np.concatenate([one["pixel_values"] for one in ours]), values)
    if "image_grid_thw" in theirs:
        assert [one["grid_thw"].tolist() for one in ours] == theirs["image_grid_thw"].tolist()


def check_crops(ours: list[dict[str, np.ndarray]], theirs: Any) -> None:
    """Molmo 2's crops, and what its embeddings are made of. Where a mean lies half way between two
    bytes, torch's rounding depends on its threads, and on the processor."""
    for one, values, pooled in zip(ours, theirs["pixel_values"], theirs["pooled"], strict=True):
        levels = np.abs(one["pixel_values"] - values) * 255 / 2
        assert levels.max() < 1.001
        assert (levels > 0.001).mean() < 0.001
        made = one["pooled"][one["marks"] < 0]
        assert [[int(each) for each in row if each >= 0] for row in made] == pooled


def check_patches(ours: list[dict[str, np.ndarray]], theirs: Any) -> None:
    """Gemma 4's patches, which are cut already and filled up with zeros."""
    for one, patches, places in zip(
        ours, theirs["pixel_values"], theirs["image_position_ids"], strict=True
    ):
        real = (places >= 0).all(1)
        columns, rows = places[real].max(0) + 1
        side = round((patches.shape[1] // 3) ** 0.5)
        apart = patches[real].reshape(rows, columns, side, side, 3).transpose(4, 0, 2, 1, 3)
        assert np.array_equal(one["pixel_values"][0], apart.reshape(3, rows * side, columns * side))


def in_squares(patches: np.ndarray, grids: np.ndarray, side: int) -> np.ndarray:
    """The patches of PaddleOCR-VL's pictures, which stand row by row, in order of the squares that
    are merged: [patches, numbers]."""
    found, start = [], 0
    for _, rows, columns in grids:
        part = patches[start : start + rows * columns]
        apart = part.reshape(rows // side, side, columns // side, side, -1)
        found.append(apart.transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1))
        start += rows * columns
    return np.concatenate(found)


def test_how_slices_are_asked_for(tmp_path: Path) -> None:
    write_folder(tmp_path, FAMILIES["minicpmv4_6"])
    facts = facts_of(tmp_path)
    assert facts is not None
    plain = layout(facts, "image", (100, 90))
    assert len(plain.runs) == 1 + 9
    few = facts_with(facts, {}, {"max_slice_nums": 4}, ("image",))
    assert len(layout(few, "image", (100, 90)).runs) == 1 + 4
    whole = facts_with(facts, {}, {"slice_mode": False}, ("image",))
    assert len(layout(whole, "image", (100, 90)).runs) == 1
    with pytest.raises(InvalidRequest, match="max_slice_nums is 10; at most 9"):
        facts_with(facts, {}, {"max_slice_nums": 10}, ("image",))


def test_how_crops_are_asked_for(tmp_path: Path) -> None:
    write_folder(tmp_path, FAMILIES["molmo2"])
    facts = facts_of(tmp_path)
    assert facts is not None
    assert layout(facts, "image", (100, 90)).grid == (3, 2)
    few = facts_with(facts, {}, {"max_crops": 2}, ("image",))
    assert layout(few, "image", (100, 90)).grid == (2, 1)
    more = facts_with(facts, {"max_crops": 12}, {}, ("image",))
    assert layout(more, "image", (100, 90)).grid == (4, 3)
    with pytest.raises(InvalidRequest, match="max_crops is 7; at most 6"):
        facts_with(facts, {}, {"max_crops": 7}, ("image",))
    for wrong in (0, 65):
        with pytest.raises(InvalidRequest, match="max_crops must be 1 to 64"):
            facts_with(facts, {"max_crops": wrong}, {}, ("image",))


def test_ids_that_come_tokenised(tmp_path: Path) -> None:
    for name, family in FAMILIES.items():
        folder = tmp_path / name
        folder.mkdir()
        write_folder(folder, family)
        facts, tokenizer = facts_of(folder), tokens_of(folder)
        assert facts is not None
        prompt = f"ab {family.mark} abc"
        layouts = [layout(facts, "image", (30, 60))]
        wanted = tokenizer.encode(with_runs(prompt, facts, layouts))
        own = facts.kinds["image"]
        mark = tokenizer.encode(own.placeholder)  # MiniCPM-V's has several tokens
        one = mark[0] if len(mark) == 1 else own.token_id
        ids = with_one(tokenizer.encode(prompt), mark, own.token_id)
        found = ids_with_runs(ids, facts, {one: "image"}, layouts, tokenizer.encode)
        assert found == wanted


def test_numbered_placeholders(tmp_path: Path) -> None:
    """Phi-3-vision's makers number pictures so, and allow any order and a number twice."""
    write_folder(tmp_path, FAMILIES["phi3_v"])
    facts = facts_of(tmp_path)
    assert facts is not None
    text = "a <|image_1|> b <|image_2|><|image_x|> c"
    assert uncounted(text, facts) == "a <|image|> b <|image|><|image_x|> c"
    assert uncounted("a <|image|>", facts) == "a <|image|>"
    for wrong in ("<|image_2|>", "<|image_2|><|image_1|>", "<|image_1|><|image_1|>"):
        with pytest.raises(InvalidRequest, match=r"numbers its pictures .* must come first"):
            uncounted(wrong, facts)
    write_folder(tmp_path, FAMILIES["llava"])
    plain = facts_of(tmp_path)
    assert plain is not None
    assert uncounted(text, plain) == text


def test_as_many_placeholders_as_pictures(tmp_path: Path) -> None:
    write_folder(tmp_path, FAMILIES["llava"])
    facts = facts_of(tmp_path)
    assert facts is not None
    one = layout(facts, "image", (30, 60))
    for text, layouts in (("<image>", []), ("", [one]), ("<image><image>", [one])):
        with pytest.raises(InvalidRequest, match="one for each"):
            with_runs(text, facts, layouts)
    with pytest.raises(InvalidRequest, match="can't stand in a prompt"):
        with_rows([facts.kinds["image"].token_id] * 2, facts, [one])


WRONG: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "another class": ("llava", {"image_processor_type": "FooImageProcessor"}, {}, "FooImage"),
    "no class": ("llava", {"image_processor_type": None}, {}, "image_processor_type"),
    "an unknown setting": ("llava", {"sharpen": True}, {}, "sharpen"),
    "no resize": ("llava", {"do_resize": False}, {}, "do_resize"),
    "a strange filter": ("llava", {"resample": 77}, {}, "resample"),
    "a zero": ("llava", {"image_std": [0.5, 0.0, 0.5]}, {}, "image_std"),
    "two colours": ("llava", {"image_mean": [0.5, 0.5]}, {}, "image_mean"),
    "no number": ("llava", {"rescale_factor": "x"}, {}, "rescale_factor"),
    "a huge crop": ("llava", {"crop_size": {"height": 1 << 40, "width": 1}}, {}, "crop_size"),
    "a negative edge": ("llava", {"size": {"shortest_edge": -1}}, {}, "size"),
    "another side": ("llava", {"crop_size": 42}, {}, "image_size"),
    "no patch": ("llava", {}, {"vision_config": {"patch_size": 0}}, "patch_size"),
    "an id of no token": ("llava", {}, {"image_token_index": 5}, "special token"),
    "pan and scan": ("gemma3", {"do_pan_and_scan": True}, {}, "do_pan_and_scan"),
    "no rows": ("gemma3", {}, {"mm_tokens_per_image": 0}, "embeddings"),
    "many rows": ("gemma3", {}, {"mm_tokens_per_image": 1 << 40}, "embeddings"),
    "no tile": ("idefics3", {"max_image_size": {"longest_edge": 0}}, {}, "max_image_size"),
    "no scale": ("idefics3", {}, {"scale_factor": 1 << 30}, "embeddings"),
    "another break": ("pixtral", {}, {"image_token_index": 9}, "special token"),
    "another patch of pixels": ("pixtral", {"patch_size": 9}, {}, "patch_size"),
    "a huge picture": ("mistral3", {"size": {"longest_edge": 1 << 40}}, {}, "longest_edge"),
    "a strange merge": ("mistral3", {}, {"spatial_merge_size": 0}, "spatial_merge_size"),
    "tiles of another square": ("lfm2_vl", {"tile_size": 20}, {}, "tile_size"),
    "one tile": ("lfm2_vl", {"min_tiles": 1}, {}, "min_tiles"),
    "many tiles": ("lfm2_vl", {"max_tiles": 1 << 30}, {}, "max_tiles"),
    "patches of another size": ("lfm2_vl", {"encoder_patch_size": 8}, {}, "encoder_patch_size"),
    "another factor": ("lfm2_vl", {"downsample_factor": 3}, {}, "downsample_factor"),
    "descending rows": ("lfm2_vl", {"min_image_tokens": 17}, {}, "min_image_tokens"),
    "endless tolerance": ("lfm2_vl", {"max_pixels_tolerance": 1e300}, {}, "tolerance"),
    "bare rows": ("lfm2_vl", {"use_image_special_tokens": False}, {}, "special_tokens"),
    "a tile of another side": ("llava_next", {"size": {"shortest_edge": 28}}, {}, "size"),
    "other forms of tiles": (
        "llava_next",
        {"image_grid_pinpoints": [[24, 24]]},
        {},
        "pinpoints",
    ),
    "windows of no size": ("granite4_vision", {}, {"downsample_rate": "0/4"}, "downsample_rate"),
    "patches of two frames": ("paddleocr_vl", {"temporal_patch_size": 2}, {}, "temporal"),
    "no patches at all": ("kimi_k25", {"max_patches": 1}, {}, "max_patches"),
    "sides of two lengths": ("kimi_k25", {"size": {"max_height": 9, "max_width": 8}}, {}, "size"),
    "squares of another size": ("kimi_k25", {"merge_size": 3}, {}, "merge_size"),
    "what is left over cut off": ("kimi_vl", {"pad_input": False}, {}, "pad_input"),
    "what is left over cut off, unsaid": ("kimi_vl", {"pad_input": None}, {}, "pad_input"),
    "oblongs": ("kimi_vl", {"merge_kernel_size": [2, 1]}, {}, "merge_kernel_size"),
    "no tokens at all": ("kimi_vl", {"in_token_limit": 3}, {}, "in_token_limit"),
    "endless tokens": ("kimi_vl", {"in_token_limit": 1 << 60}, {}, "in_token_limit"),
    "patches of another tower": ("kimi_vl", {"patch_size": 14}, {}, "patch_size"),
    "an oblong whole": ("step3p7", {"size": {"height": 32, "width": 24}}, {}, "size"),
    "a whole of half squares": ("step3p7", {"size": 28}, {}, "multiple of 8"),
    "windows of half squares": ("step3p7", {"patch_size": 20}, {}, "patch_size"),
    "windows of no pixels": ("step3p7", {"patch_size": 0}, {}, "patch_size"),
    "endless windows": ("step3p7", {"max_image_size": 1 << 30}, {}, "max_image_size"),
    "a whole larger than pictures": ("step3p7", {"max_image_size": 16}, {}, "max_image_size"),
    "other rows of a window": ("step3p7", {}, {"patch_token_len": 81}, "patch_token_len"),
    "patches of another tower than Molmo's": ("molmo2", {"patch_size": 5}, {}, "patch_size"),
    "squares of another tower": ("molmo2", {"size": 24}, {}, "size"),
    "oblong squares": ("molmo2", {"size": {"height": 20, "width": 16}}, {}, "size"),
    "another filter": ("molmo2", {"resample": 3}, {}, "resample"),
    "margins as wide as crops": ("molmo2", {"overlap_margins": [3, 2]}, {}, "overlap_margins"),
    "margins of less than nothing": ("molmo2", {"overlap_margins": [-1, 1]}, {}, "margins"),
    "endless crops": ("molmo2", {"max_crops": 1 << 30}, {}, "max_crops"),
    "nothing pooled": ("molmo2", {"pooling_size": [0, 2]}, {}, "pooling_size"),
    "pools of three numbers": ("molmo2", {"pooling_size": [1, 2, 2]}, {}, "pooling_size"),
    "a mark of the head's": ("molmo2", {}, {"image_col_id": 5}, "image_col_id"),
    "an oblong page": ("deepseek_ocr2", {"size": {"height": 128, "width": 96}}, {}, "a square"),
    "a page of other queries": ("deepseek_ocr2", {"size": 112}, {}, "144 or 256"),
    "parts of other queries": ("deepseek_ocr2", {"tile_size": 0}, {}, "144 or 256"),
    "bars of no colour": ("deepseek_ocr2", {"background_color": [300] * 3}, {}, "background"),
    "slices without a size": ("minicpmv4_6", {"scale_resolution": 0}, {}, "scale_resolution"),
    "endless slices": ("minicpmv4_6", {"max_slice_nums": 1 << 30}, {}, "max_slice_nums"),
    "rows of another size": ("minicpmv4_6", {"downsample_mode": "4x"}, {}, "downsample_mode"),
    "slices in other patches": ("minicpmv4_6", {"patch_size": 14}, {}, "patch_size"),
    "too many tiles": ("internvl", {"max_patches": 1 << 30}, {}, "max_patches"),
    "other rows": ("internvl", {}, {"image_seq_length": 9}, "image_seq_length"),
    "a tile of another size": ("internvl", {"size": {"height": 48, "width": 48}}, {}, "24"),
    "other forms": ("llava_onevision", {"image_grid_pinpoints": [[24, 24]]}, {}, "pinpoints"),
    "huge forms": ("llava_onevision", {}, {"image_grid_pinpoints": [[24, 24000]]}, "pinpoints"),
    "half a tile": ("llava_onevision", {}, {"image_grid_pinpoints": [[36, 24]]}, "pinpoints"),
    "another aspect": ("llava_onevision", {}, {"vision_aspect_ratio": "square"}, "aspect"),
    "another patch": ("qwen2_vl", {"patch_size": 16}, {}, "patch_size"),
    "no patches": ("qwen2_vl", {"patch_size": 0}, {"vision_config": {}}, "patch_size"),
    "more than there is": ("qwen2_vl", {"max_pixels": 1 << 60}, {}, "pixels"),
    "the wrong way round": ("qwen2_vl", {"min_pixels": 99, "max_pixels": 9}, {}, "ascending"),
}


@pytest.mark.parametrize("case", WRONG)
def test_settings_that_cant_be_followed_are_named(case: str, tmp_path: Path) -> None:
    name, processor, config, words = WRONG[case]
    write_folder(tmp_path, FAMILIES[name])
    for file, changes in (("preprocessor_config.json", processor), ("config.json", config)):
        values = json.loads((tmp_path / file).read_text())
        (tmp_path / file).write_text(json.dumps({**values, **changes}))
    with pytest.raises(UnsupportedModel, match=words):
        facts_of(tmp_path)


def test_a_processor_saved_as_a_whole(tmp_path: Path) -> None:
    """transformers' newer way: one file with a section for each part."""
    write_folder(tmp_path, FAMILIES["llava"])
    plain = facts_of(tmp_path)
    saved = tmp_path / "preprocessor_config.json"
    whole = {"processor_class": "LlavaProcessor", "image_processor": json.loads(saved.read_text())}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    saved.unlink()
    assert facts_of(tmp_path) == plain


def test_models_without_eyes(tmp_path: Path) -> None:
    write_folder(tmp_path, FAMILIES["llava"])
    (tmp_path / "preprocessor_config.json").unlink()
    assert facts_of(tmp_path) is None
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert facts_of(tmp_path) is None


def test_a_tokens_id_changes_no_pixel(tmp_path: Path) -> None:
    """Qwen2-VL-2B-Instruct-AWQ's preprocessor_config.json has one."""
    write_folder(tmp_path, FAMILIES["qwen2_vl"])
    plain, file = facts_of(tmp_path), tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vision_token_id": 151654}))
    assert facts_of(tmp_path) == plain
