"""DeepSeek-OCR's pictures, of which transformers has no processor: they are compared with what its
makers' code does with Pillow."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image, ImageOps

from penstock.formats.fields import Fields
from penstock.forms.documents import DocumentImages
from penstock.forms.pixels import Pixels
from penstock.media.layout import layout
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.prepare.media import read_media
from tests.shared.media.picture_families import FAMILIES
from tests.shared.media.picture_family import write_folder
from tests.shared.media.pictures import picture

HALF = (0.5, 0.5, 0.5)
PIXELS = Pixels(resample=3, rescale=1 / 255, mean=HALF, std=HALF)
FIRST = DocumentImages(
    pixels=PIXELS, patch=16, tile=640, page=1024, tile_rows=100, page_rows=256, most=9, lines=True
)
SECOND = DocumentImages(pixels=PIXELS, patch=16, tile=768, page=1024, tile_rows=144, page_rows=256)
SMALL = msgspec.structs.replace(FIRST, patch=4, tile=48, page=64, tile_rows=9, page_rows=16)


def facts(folder: Path, architecture: str) -> MediaFacts:
    """What is read of a folder as the makers have it, without an image processor's settings and the
    id of a picture's token."""
    write_folder(folder, FAMILIES["deepseek_ocr2"])
    (folder / "preprocessor_config.json").unlink()
    own = {"processor_class": "DeepseekVLV2Processor", "normalize": True, "patch_size": 16}
    colours = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "image_token": "<image>"}
    (folder / "processor_config.json").write_text(json.dumps(own | colours))
    config = {"architectures": [architecture], "vision_config": {"width": {}}}
    found = read_media(
        folder, Fields(config, "config.json"), (folder / "tokenizer.json").read_bytes()
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("architecture", "wanted"),
    [("DeepseekOCRForCausalLM", FIRST), ("DeepseekOCR2ForCausalLM", SECOND)],
)
def test_what_the_makers_files_say(
    architecture: str, wanted: DocumentImages, tmp_path: Path
) -> None:
    own = facts(tmp_path, architecture).kinds["image"]
    assert own.preparation == wanted
    assert own.placeholder == own.token == "<image>"


def test_pixels_are_those_that_pillow_gives() -> None:
    chance = random.Random(3)
    sizes = [(48, 48), (49, 20), (20, 49), (300, 7), (64, 64), (1, 1)]
    sizes += [(chance.randrange(1, 300), chance.randrange(1, 300)) for _ in range(20)]
    for width, height in sizes:
        shown = picture(width, height).convert("RGB")
        page = ImageOps.pad(shown, (64, 64), color=(127, 127, 127))
        made = SMALL.prepare(shown)
        rows, columns = made["grid"].tolist()
        parts = [np.asarray(page)]
        if rows:
            whole = shown.resize((48 * columns, 48 * rows), Image.Resampling.BICUBIC)
            boxes = [
                (48 * column, 48 * row, 48 * (column + 1), 48 * (row + 1))
                for row in range(rows)
                for column in range(columns)
            ]
            parts = [*(np.asarray(whole.crop(box)) for box in boxes), *parts]
        assert (rows > 0) == (max(width, height) > 48)
        assert rows * columns in (0, *range(2, 10))
        cut = [
            part.reshape(len(part) // 4, 4, len(part) // 4, 4, 3)
            .swapaxes(1, 2)
            .reshape(-1, 4, 4, 3)
            for part in parts
        ]
        assert np.array_equal(made["pixels"], np.concatenate(cut)), (width, height)
        given = SMALL.inputs(made)
        assert given["tile_grid"].tolist() == [rows, columns]
        assert given["spatial_shapes"].tolist() == [[12, 12]] * rows * columns + [[16, 16]]


def test_rows_are_known_from_the_size_alone() -> None:
    """As the makers' code counts them: lines of all tiles, of the page, and one behind them."""
    kinds = {"image": KindFacts(preparation=FIRST, placeholder="i", token="i", token_id=1)}
    for size, grid in (((600, 640), (0, 0)), ((641, 600), (2, 2)), ((1000, 2000), (2, 4))):
        found = layout(MediaFacts(kinds=kinds), "image", size)
        rows, columns = grid
        assert (found.grid, found.rows) == (
            grid,
            10 * rows * (10 * columns + 1) * bool(rows) + 16 * 17 + 1,
        )
