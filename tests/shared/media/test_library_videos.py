"""Videos as a program has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.config.settings import MediaSettings
from penstock.errors import InvalidRequest, StartupError
from penstock.llm.prompts import _plain_message
from penstock.llm.sounds_given import source_of_part, sources_of
from penstock.media.frame_settings import FrameSettings, frame_settings, item_limits
from tests.shared.media.videos import noise

FRAMES = noise(3, 4, 6)
PICTURES = [Image.fromarray(frame) for frame in FRAMES]


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        (FRAMES, (2, 1)),
        (PICTURES, (2, 1)),
        (list(FRAMES), (2, 1)),
        ([FRAMES], (2, 1)),
        ((FRAMES, {"fps": 0.5}), (1, 2)),
        ((FRAMES, {"fps": 29.97}), (2997, 100)),
        ((FRAMES, {"fps": 2, "do_sample_frames": False, "video_backend": "opencv"}), (2, 1)),
        ((PICTURES, {"fps": 30, "total_num_frames": 90, "frames_indices": [0, 30, 60]}), (1, 1)),
    ],
)
def test_one_video_of_frames(given: Any, rate: tuple[int, int]) -> None:
    (source,) = sources_of({"multi_modal_data": {"video": given}})
    assert source.kind == "video"
    assert source.raw == (FRAMES.tobytes(), (6, 4, *rate))


def test_several_videos() -> None:
    path = Path("a.mp4")
    given = [FRAMES, path, "b.mp4", "https://x/c.mp4", PICTURES, b"file"]
    found = sources_of({"multi_modal_data": {"video": given, "image": PICTURES}})
    assert [source.kind for source in found] == ["image"] * 3 + ["video"] * 6
    videos = found[3:]
    assert [bool(each.frames) for each in videos] == [True, False, False, False, True, False]
    assert [each.path for each in videos[1:3]] == [path, Path("b.mp4")]
    assert (videos[3].url, videos[5].data) == ("https://x/c.mp4", b"file")


def test_parts_of_messages() -> None:
    assert source_of_part({"type": "video", "video": FRAMES}, "here").frames is not None
    assert source_of_part({"type": "video", "path": "a.mp4"}, "here").path == Path("a.mp4")
    part = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,"}}
    assert source_of_part(part, "here").url == "data:video/mp4;base64,"


@pytest.mark.parametrize(
    "given",
    [
        7,
        (FRAMES, {"speed": 2}),
        (FRAMES, {"fps": 0}),
        FRAMES.astype(np.float32),
        [FRAMES[0], FRAMES[1][:2]],
        (7, {"fps": 2}),
    ],
)
def test_what_is_no_video(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="multi_modal_data"):
        sources_of({"multi_modal_data": {"video": given}})


def test_a_part_of_a_message_that_is_none_is_told_what_is_taken() -> None:
    with pytest.raises(
        InvalidRequest, match=r"image_url, .*input_audio, .*video_url, .*not 'film'"
    ):
        _plain_message({"role": "user", "content": [{"type": "film"}]}, "messages[0]", [])


def test_the_stated_default_holds_every_kind() -> None:
    settings = MediaSettings()
    assert json.loads(settings.limit_mm_per_prompt) == item_limits(settings)
    assert item_limits(MediaSettings(limit_mm_per_prompt="")) == item_limits(settings)


def test_settings_of_frames() -> None:
    def read(text: str) -> FrameSettings:
        return frame_settings(MediaSettings(media_io_kwargs=text, max_video_frames=9))

    assert read("") == FrameSettings(9)
    assert read('{"video": {"num_frames": 7, "fps": 2}}') == FrameSettings(9, 7, 2.0)
    assert read('{"video": {"num_frames": -1}}') == FrameSettings(9, 0)
    for wrong in ("[]", '{"audio": {}}', '{"video": {"num_frames": 0}}', '{"video": {"fps": "a"}}'):
        with pytest.raises(StartupError, match="media_io_kwargs"):
            read(wrong)
