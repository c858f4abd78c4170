"""What a request may change of how its pictures are prepared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.config.settings import MediaSettings
from penstock.errors import InvalidRequest
from penstock.media.changes import changed, narrowed
from penstock.media.desk import MediaDesk
from penstock.media.sources import MediaSource
from penstock.media_facts import (
    CanvasImages,
    ImagePreparation,
    KindFacts,
    MediaFacts,
    PatchImages,
    Pixels,
    RowImages,
    ScannedImages,
    TiledImages,
)
from tests.shared.media.pictures import PREPARATION, picture, saved

PATCHES = PatchImages(
    pixels=Pixels(resample=3), min_pixels=784, max_pixels=10_000, patch=14, merge=2
)
TILES = TiledImages(pixels=Pixels(resample=1), longest_edge=64, tile=16, rows=4)
CANVAS = CanvasImages(pixels=Pixels(resample=3), tile=24, rows=4, most=6)
ROWS = RowImages(pixels=Pixels(resample=3), longest_edge=100, patch=8)
SCANNED = ScannedImages(
    pixels=Pixels(resample=2), height=32, width=32, rows=4, begin="", end="", scan=True
)
WHOLE = TiledImages(pixels=Pixels(resample=1), longest_edge=64, tile=16, rows=4, split=False)


@pytest.mark.parametrize(
    ("image", "given"),
    [
        (PATCHES, {"max_pixels": 9_000, "min_pixels": 800}),
        (PATCHES, {"size": {"longest_edge": 10_000}}),
        (TILES, {"longest_edge": 64, "do_image_splitting": False}),
        (WHOLE, {"longest_edge": 16, "do_image_splitting": False}),
        (CANVAS, {"max_patches": 2, "crop_to_patches": False}),
        (ROWS, {"longest_edge": 50}),
        (SCANNED, {"pan_and_scan_max_num_crops": 2, "pan_and_scan_min_ratio_to_activate": 1.5}),
        (PREPARATION, {}),
    ],
)
def test_a_request_may_have_its_pictures_smaller(
    image: ImagePreparation, given: dict[str, Any]
) -> None:
    assert narrowed(image, given, "kwargs") == changed(image, given, "kwargs")


@pytest.mark.parametrize(
    ("image", "given", "words"),
    [
        (PATCHES, {"max_pixels": 10_001}, "max_pixels is 10001; at most 10000 is accepted"),
        (PATCHES, {"size": {"longest_edge": 1 << 28}}, "max_pixels is 268435456; at most 10000"),
        (PATCHES, {"min_pixels": 1 << 26}, "ascending"),
        (PATCHES, {"min_pixels": 1 << 26, "max_pixels": 1 << 26}, "at most 10000"),
        (TILES, {"longest_edge": 65}, "longest_edge is 65; at most 64"),
        (WHOLE, {"do_image_splitting": True}, "doesn't split"),
        (CANVAS, {"max_patches": 7}, "max_patches is 7; at most 6"),
        (CANVAS, {"max_patches": 1 << 30}, "max_patches must be 1 to 64"),
        (ROWS, {"longest_edge": 101}, "longest_edge is 101; at most 100"),
        (SCANNED, {"pan_and_scan_max_num_crops": 5}, "max_num_crops is 5; at most 4"),
        (SCANNED, {"pan_and_scan_min_crop_size": 1}, "min_crop_size 64 to 8192"),
        (SCANNED, {"pan_and_scan_min_ratio_to_activate": 0.1}, "must be 1 to 1000"),
        (SCANNED, {"pan_and_scan_min_ratio_to_activate": "wide"}, "must be a number"),
    ],
)
def test_a_request_may_not_have_them_larger(
    image: ImagePreparation, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        narrowed(image, given, "kwargs")
    assert caught.value.param == "kwargs"


@pytest.fixture
async def desk() -> AsyncIterator[MediaDesk]:
    desk = MediaDesk(MediaSettings(mm_processor_kwargs='{"max_pixels": 20000}'))
    yield desk
    desk.close()


async def test_the_operators_settings_are_the_bound(desk: MediaDesk) -> None:
    facts = KindFacts(preparation=PATCHES, placeholder="<image>", token="<image>", token_id=1)
    source = MediaSource("here", data=saved(picture(400, 400)))
    with desk.lease("") as lease:
        items = await desk.prepare(
            MediaFacts(kinds={"image": facts}), [source], lease, {"max_pixels": 20_000}
        )
        assert items is not None
        assert items.facts.kinds["image"].preparation == PatchImages(
            pixels=PATCHES.pixels, min_pixels=784, max_pixels=20_000, patch=14, merge=2
        )
        pids = desk.pool.pids
        with pytest.raises(InvalidRequest, match="at most 20000"):
            await desk.prepare(
                MediaFacts(kinds={"image": facts}), [source], lease, {"max_pixels": 20_001}
            )
        assert (desk.pool.pids, desk.pool.counts.items) == (pids, 1)
