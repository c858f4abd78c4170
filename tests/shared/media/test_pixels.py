"""Pixels and sizes are those of transformers' image processors, to the bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from penstock.forms.anyres import AnyresImages
from penstock.forms.documents import DocumentImages
from penstock.forms.fixed import FixedImages
from penstock.forms.geometry import BadShape
from penstock.forms.naflex import NaflexImages
from penstock.forms.overlapping import OverlappingImages
from penstock.forms.patches import PatchImages
from penstock.forms.pooled import PooledImages
from penstock.forms.sheets import BarredImages, SheetImages, shown
from penstock.forms.sliced import SlicedImages
from penstock.forms.windowed import WindowedImages
from penstock.media.item_preparation import Unfit, prepare_item
from penstock.media.layout import layout
from penstock.media.wire import ItemBounds, Prepare
from penstock.model.media_facts import KindFacts, MediaFacts
from tests.shared.media.lfm2_pictures import pages_of, parts_of, strip_of
from tests.shared.media.pixel_cases import CASES, SIZES
from tests.shared.media.test_expansion import check_crops, check_patches, in_squares
from tests.thinning import part


def pictures(count: int) -> Iterator[Image.Image]:
    chance = random.Random(7)
    sizes = SIZES + [(chance.randrange(1, 300), chance.randrange(1, 300)) for _ in range(count)]
    for width, height in sizes:
        noise = np.random.default_rng(width * 1000 + height)
        yield Image.fromarray(noise.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("case", CASES)
def test_pixels_are_those_of_transformers(case: str) -> None:
    processor, preparation = CASES[case]
    for picture in pictures(part(40, 1 / 4)):
        if isinstance(preparation, BarredImages):
            check_bars(processor, preparation, picture)
            continue
        if isinstance(preparation, SheetImages):
            check_sheet(processor, preparation, picture)
            continue
        theirs = processor(picture, return_tensors="np")
        try:
            ours = preparation.inputs(preparation.prepare(picture))
        except BadShape:
            pytest.fail(f"{picture.size} was refused")
        if isinstance(preparation, OverlappingImages):
            check_crops([ours], theirs)
            continue
        if isinstance(preparation, NaflexImages):
            patches, shapes = parts_of(theirs, preparation.patch)
            assert np.array_equal(ours["pixel_values"], patches), picture.size
            assert np.array_equal(ours["spatial_shapes"], shapes)
            continue
        if isinstance(preparation, (DocumentImages, WindowedImages)):
            patches, parts = pages_of(theirs, preparation.patch)
            assert np.array_equal(ours["pixel_values"], patches), picture.size
            assert ours["spatial_shapes"].tolist() == parts
            continue
        if isinstance(preparation, SlicedImages):
            assert np.array_equal(ours["pixel_values"], strip_of(theirs, preparation.patch))
            assert np.array_equal(ours["spatial_shapes"], theirs["target_sizes"]), picture.size
            continue
        if isinstance(preparation, PooledImages):
            check_patches([ours], theirs)
            continue
        values = theirs["pixel_values"]
        if case in ("paddleocr_vl", "kimi_k25", "kimi_vl"):
            patches = values.reshape(-1, *values.shape[-3:])
            values = in_squares(patches, theirs["image_grid_thw"].reshape(-1, 3), 2)
        values = values[0] if values.ndim == 5 else values
        if isinstance(preparation, AnyresImages):
            assert tuple(ours["image_size"]) == tuple(theirs["image_sizes"][0])
        assert ours["pixel_values"].dtype == np.float32
        assert np.array_equal(ours["pixel_values"], values.astype(np.float32)), picture.size
        if "large_pixel_values" in ours:
            large = theirs["high_res_pixel_values"].astype(np.float32)
            assert np.array_equal(ours["large_pixel_values"], large), picture.size
        if "image_grid_thw" in theirs:
            assert np.array_equal(ours["grid_thw"], np.ravel(theirs["image_grid_thw"]))


def check_sheet(processor: Any, image: SheetImages, picture: Image.Image) -> None:
    """Their whole is made smaller in another order of sums. Pictures that are too long are refused
    there too; what isn't all white is what their mask says."""
    own = KindFacts(preparation=image, placeholder="<image>", token="<image>", token_id=1)
    try:
        ours = image.inputs(image.prepare(picture))
    except BadShape:
        with pytest.raises(ValueError, match="extreme"):
            processor(picture)
        return
    theirs = processor(picture)
    pixels, mask = theirs["image_pixel_values"][0], theirs["image_attention_mask"][0]
    rows, columns = ours["tile_grid"].tolist()
    assert theirs["image_sizes"].tolist() == [[rows * image.tile, columns * image.tile]]
    found = torch.from_numpy(ours["pixel_values"])
    assert (found[0] - pixels[0]).abs().max() < 1e-5
    assert (found[1:] - pixels[1:]).abs().max() < 1e-6
    seen = shown(ours["image_size"].tolist(), (rows, columns), image.tile, image.patch)
    side = image.tile // image.patch
    whole = mask[1:].unflatten(0, (rows, columns)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
    assert (int(whole[:, 0].sum()), int(whole[0].sum())) == seen
    # Their counts of the whole's are constants, for 32 patches in a row.
    counted = theirs["num_img_tokens"][0] - 256 - 16 + side // 2 * (side // 2 + 1)
    laid = layout(MediaFacts(kinds={"image": own}), "image", (picture.height, picture.width))
    assert laid.rows == counted


def check_bars(processor: Any, image: BarredImages, picture: Image.Image) -> None:
    """The tiles are the slow processor's to the bit; the whole is made smaller in another order of
    sums."""
    own = KindFacts(preparation=image, placeholder="<image>", token="<image>", token_id=1)
    theirs = processor(picture)
    (pixels,), (size,) = theirs["pixel_values"], theirs["image_sizes"]
    ours = image.inputs(image.prepare(picture))
    assert (tuple(ours["image_size"]), tuple(ours["tile_grid"] * image.tile)) == (size, size)
    assert np.array_equal(ours["pixel_values"][1:], pixels[1:]), picture.size
    assert np.abs(ours["pixel_values"][0] - pixels[0]).max() < 1e-5
    laid = layout(MediaFacts(kinds={"image": own}), "image", (picture.height, picture.width))
    assert [laid.rows] == theirs["num_img_tokens"]


@pytest.mark.parametrize("width", [1, 3000])
def test_a_strip_that_would_have_no_width_is_refused(width: int) -> None:
    _, preparation = CASES["phi3_v"]
    with pytest.raises(BadShape, match="fills 16 tiles, its shorter one has no pixel"):
        preparation.prepare(Image.new("RGB", (width, 3001 - width)))


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        if case.startswith(("qwen", "idef", "s", "int", "gemma3 with", "gemma4"))
    ],
)
def test_rows_are_known_from_the_size_alone(case: str) -> None:
    _, preparation = CASES[case]
    own = KindFacts(preparation=preparation, placeholder="<image>", token="<image>", token_id=1)
    facts = MediaFacts(kinds={"image": own})
    for picture in pictures(part(40, 1 / 4)):
        found = layout(facts, "image", (picture.height, picture.width))
        tiles = preparation.prepare(picture)["pixels"]
        if isinstance(preparation, (PatchImages, PooledImages)):
            side = preparation.patch * preparation.merge
            assert found.rows == tiles.shape[1] // side * (tiles.shape[2] // side)
        elif isinstance(preparation, WindowedImages):  # of patches, 16 of which become one
            assert found.rows == len(tiles) // 16
        else:
            assert found.rows == preparation.rows * len(tiles)


ODD = [(1, 1), (1, 2), (1, 199), (1, 200), (1, 201), (2, 399), (3, 700), (1, 5000), (33, 7000)]
"""Shorter and longer side, pixels."""
TINY = ("deepseek_ocr2 of tiny pages", "deepseek_ocr of tiny pages")


@pytest.mark.parametrize("case", [*CASES, *TINY])
def test_pictures_of_any_form_are_prepared_or_refused_in_words(case: str) -> None:
    """Where rows depend on the size, whoever counts them from it alone refuses the same ones."""
    if case in TINY:
        sizes = {"patch": 4, "tile": 48, "page": 64, "tile_rows": 9, "page_rows": 16}
        lines = "ocr2" not in case
        preparation = msgspec.structs.replace(CASES["deepseek_ocr2"][1], **sizes, lines=lines)
    else:
        preparation = CASES[case][1]
    own = KindFacts(preparation=preparation, placeholder="<image>", token="<image>", token_id=1)
    facts, prepared = MediaFacts(kinds={"image": own}), 0
    for size in [form for one in ODD for form in (one, one[::-1])]:
        data = bytes(3 * size[0] * size[1])
        task = Prepare(preparation, data, ItemBounds(10**7), raw=(size[1], size[0]))
        try:
            found = prepare_item(task)
        except Unfit:  # Anything else is what was forgotten.
            if not isinstance(preparation, FixedImages):
                with pytest.raises(BadShape):
                    layout(facts, "image", size)
            continue
        assert found.shape == size
        assert layout(facts, "image", size).rows > 0
        assert all(array.size for array in preparation.inputs(found.arrays).values())
        prepared += 1
    assert prepared >= 2


def test_a_picture_that_is_too_long_is_refused_with_the_bound() -> None:
    _, preparation = CASES["qwen2_vl"]
    with pytest.raises(BadShape, match="200 times"):
        preparation.prepare(Image.new("RGB", (1000, 4)))


def test_what_no_preparation_yields_is_refused() -> None:
    _, preparation = CASES["qwen2_vl"]
    for arrays in (
        {},
        {"pixels": np.zeros((1, 56, 56, 3), np.float32)},
        {"pixels": np.zeros((1, 56, 56, 4), np.uint8)},
        {"pixels": np.zeros((1, 57, 56, 3), np.uint8)},
        {"pixels": np.zeros((2, 56, 56, 3), np.uint8)},
    ):
        with pytest.raises(ValueError):
            preparation.inputs(arrays)
