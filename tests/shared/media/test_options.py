"""What a request may change of how its pictures are prepared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.config.settings import MediaSettings
from penstock.errors import InvalidRequest, StartupError
from penstock.forms.canvas import CanvasImages
from penstock.forms.patches import PatchImages, VideoFrames
from penstock.forms.pixels import Pixels
from penstock.forms.registry import ImagePreparation
from penstock.forms.rows import RowImages
from penstock.forms.scanned import ScannedImages
from penstock.forms.tiled import TiledImages
from penstock.forms.video import FrameSampling
from penstock.media.changes import changed, check_operators, facts_with, narrowed, with_frames
from penstock.media.desk import MediaDesk
from penstock.media.frame_settings import FrameSettings
from penstock.media.sources import MediaSource
from penstock.model.media_facts import KindFacts, MediaFacts, MediaKind
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
VIDEO = VideoFrames(
    pixels=Pixels(resample=3),
    min_pixels=5_000,
    max_pixels=8_000,
    patch=14,
    merge=2,
    sampling=FrameSampling(num_frames=8, fps=2.0),
)
BOTH = MediaFacts(
    kinds={
        "image": KindFacts(preparation=PATCHES, placeholder="<i>", token="<i>", token_id=1),
        "video": KindFacts(preparation=VIDEO, placeholder="<v>", token="<v>", token_id=2),
    }
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
    image: ImagePreparation | VideoFrames, given: dict[str, Any]
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
        (VIDEO, {"num_frames": 9}, "num_frames is 9; at most 8"),
        (VIDEO, {"num_frames": 0}, "num_frames must be 1 to"),
        (VIDEO, {"num_frames": -1}, "num_frames must be 1 to"),
        (VIDEO, {"fps": 2.5}, "at most 2 is accepted"),
        (VIDEO, {"fps": 0}, "fps above 0"),
        (VIDEO, {"fps": float("nan")}, "fps above 0"),
    ],
)
def test_a_request_may_not_have_them_larger(
    image: ImagePreparation | VideoFrames, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        narrowed(image, given, "kwargs")
    assert caught.value.param == "mm_processor_kwargs"


def test_a_request_is_bound_by_the_kinds_that_it_brings() -> None:
    """Pictures may be smaller than a frame of a video is, and larger."""
    for wanted in (3_000, 9_000):
        found = facts_with(BOTH, {}, {"max_pixels": wanted}, {"image"})
        assert pixels(found, "image") == (784, wanted)
        assert pixels(found, "video") == (5_000, 8_000)
        with pytest.raises(InvalidRequest, match="max_pixels"):
            facts_with(BOTH, {}, {"max_pixels": wanted}, {"video"})


@pytest.mark.parametrize(
    ("given", "images", "videos"),
    [
        ({"max_pixels": 3_000}, (784, 3_000), (3_000, 3_000)),
        ({"size": {"longest_edge": 3_000}}, (784, 3_000), (3_000, 3_000)),
        ({"min_pixels": 9_000}, (9_000, 10_000), (8_000, 8_000)),
        ({"min_pixels": 900, "max_pixels": 20_000}, (900, 20_000), (900, 20_000)),
    ],
)
def test_the_operators_bounds_are_for_all_kinds(
    given: dict[str, Any], images: tuple[int, int], videos: tuple[int, int]
) -> None:
    found = facts_with(BOTH, given, {}, {"image", "video"})
    assert (pixels(found, "image"), pixels(found, "video")) == (images, videos)


def test_a_refusal_says_which_kind_it_is_about() -> None:
    with pytest.raises(InvalidRequest, match="for videos: max_pixels is 9000; at most 8000"):
        facts_with(BOTH, {}, {"max_pixels": 9_000}, {"image", "video"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ('{"max_pixels": 500}', "for pictures: min_pixels and max_pixels must be ascending"),
        ('{"num_frames": 0}', "for videos: num_frames must be 1 to"),
        ('{"longest_edge": 64}', "longest_edge can't be changed for this model"),
    ],
)
def test_what_no_item_could_be_prepared_with_is_an_error_at_the_start(
    given: str, words: str
) -> None:
    with pytest.raises(StartupError, match=words):
        check_operators(BOTH, MediaSettings(mm_processor_kwargs=given))
    check_operators(BOTH, MediaSettings(mm_processor_kwargs='{"max_pixels": 3000}'))


def test_no_request_lifts_the_operators_frames() -> None:
    """0 is what a server says that has no such bound of its own."""
    for settings in (FrameSettings(4, 4), FrameSettings(4, 0, 1.0)):
        facts = with_frames(BOTH, settings)
        for given in ({"num_frames": 0}, {"fps": 0}, {"fps": 0.0}, {"num_frames": 5}):
            with pytest.raises(InvalidRequest, match=r"num_frames|fps"):
                facts_with(facts, {}, given, {"video"})


def test_a_request_lifts_the_least_size_of_pictures_and_of_no_videos() -> None:
    """A long video's frames have at least 1.05 times as many, whatever else bounds them."""
    least, most = pixels(BOTH, "video")
    with pytest.raises(InvalidRequest, match=f"at most {least} is accepted for videos"):
        facts_with(BOTH, {}, {"min_pixels": least + 1}, {"video"})
    found = facts_with(BOTH, {}, {"min_pixels": least // 2, "max_pixels": most}, {"video"})
    assert pixels(found, "video") == (least // 2, most)
    least, _ = pixels(BOTH, "image")
    found = facts_with(BOTH, {}, {"min_pixels": least + 1}, {"image"})
    assert pixels(found, "image")[0] == least + 1


def pixels(facts: MediaFacts, kind: MediaKind) -> tuple[int, int]:
    found = facts.kinds[kind].preparation
    assert isinstance(found, (PatchImages, VideoFrames))
    return found.min_pixels, found.max_pixels


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
