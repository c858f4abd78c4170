"""What hub folders say of videos."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast
from transformers.video_utils import VideoMetadata

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedFrames
from penstock.forms.patches import VideoFrames
from penstock.forms.video import FrameSampling
from penstock.media.layout import layout
from penstock.media.placeholders import ids_with_runs, with_one, with_runs
from penstock.model.media_facts import MediaFacts, MediaKind
from penstock.prepare.media import read_media
from penstock.text.tokenizer import Tokenizer
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.picture_families import FAMILIES
from tests.shared.media.picture_family import write_folder

USUAL = {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768}
RELEASE: dict[str, Any] = {
    "crop_size": None,
    "do_center_crop": None,
    "do_convert_rgb": True,
    "do_sample_frames": False,
    "fps": None,
    "max_frames": 768,
    "max_pixels": 12845056,
    "merge_size": 2,
    "min_frames": 4,
    "min_pixels": 3136,
    "patch_size": 14,
    "size": {"longest_edge": 12845056, "shortest_edge": 3136},
    "temporal_patch_size": 2,
    "video_processor_type": "Qwen2VLVideoProcessor",
}
"""Settings that later releases of Qwen2.5-VL have, in part."""


def facts(
    folder: Path, timed: bool = False, family: str = "qwen2_vl", **settings: Any
) -> MediaFacts:
    """settings: of video_preprocessor_config.json; without some, there is none."""
    write_folder(folder, FAMILIES[family])
    path = folder / "config.json"
    values = json.loads(path.read_text())
    ids = tokenizer().get_vocab(with_added_tokens=True)
    for name in ("vision_start", "vision_end"):
        values[f"{name}_token_id"] = ids[f"<|{name}|>"]
    values["video_token_id"] = ids["<|video_pad|>"]
    if timed:
        values["architectures"] = ["Qwen2_5_VLForConditionalGeneration"]
        values["vision_config"]["tokens_per_second"] = 2
    if settings:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(settings))
    found = read_media(
        folder, Fields(values, "config.json"), (folder / "tokenizer.json").read_bytes()
    )
    assert found is not None
    return found


def video_of(found: MediaFacts) -> VideoFrames:
    preparation = found.kinds["video"].preparation
    assert isinstance(preparation, VideoFrames)
    return preparation


def test_onevisions_frames_have_the_size_of_its_tower(tmp_path: Path) -> None:
    """The folder is older than video processors."""
    found = facts(tmp_path, family="llava_onevision")
    video = found.kinds["video"].preparation
    assert isinstance(video, FixedFrames)
    assert (video.height, video.width, video.rows) == (24, 24, 4)
    assert video.sampling == FrameSampling(num_frames=32)
    one = layout(found, "video", (56, 84, 16, 8, 1, *range(0, 16, 5)))
    assert (one.rows, one.grid) == (4 * 4 + 1, ())
    with pytest.raises(UnsupportedModel, match="what the vision tower has"):
        facts(tmp_path, family="llava_onevision", size={"height": 30, "width": 30})


def test_a_folder_of_a_release(tmp_path: Path) -> None:
    found = facts(tmp_path, timed=True, **RELEASE)
    video = video_of(found)
    assert (video.min_pixels, video.max_pixels, video.group) == (3136, 12845056, 2)
    assert (video.positions_per_second, video.all_pixels) == (2.0, 0)
    assert video.sampling == FrameSampling(num_frames=32)
    # 8 of 16 frames, 8 per second: a group is half a second, a position.
    one = layout(found, "video", (56, 84, 16, 8, 1, *range(0, 16, 2)))
    assert (one.rows, one.grid) == (4 * 2 * 3, (4, 2, 3, 1, 1))
    assert found.kinds["video"].placeholder == "<|video_pad|>"


def test_an_older_folder_has_the_same_for_both(tmp_path: Path) -> None:
    video = video_of(facts(tmp_path))
    assert (video.min_pixels, video.max_pixels) == (56 * 56, 112 * 112)
    assert video.positions_per_second == 0


def test_settings_that_count(tmp_path: Path) -> None:
    given = {"do_sample_frames": True, "fps": 2, "max_frames": 24}
    video = video_of(facts(tmp_path, cap_pixels_per_frame=True, max_video_tokens=1000, **given))
    assert video.sampling == FrameSampling(num_frames=0, fps=2.0, max_frames=24)
    assert video.all_pixels == 2 * int(1000 * 28 * 28 * 0.9)
    assert {"shortest_edge": video.min_pixels, "longest_edge": video.max_pixels} == USUAL


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop_tops": True},
        {"patch_size": 16},
        {"video_processor_type": "OtherVideoProcessor"},
        {"min_frames": 9, "max_frames": 8},
        {"min_pixels": 10, "max_pixels": 9},
    ],
)
def test_what_can_not_be_followed_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel):
        facts(tmp_path, **wrong)


def test_groups_stand_behind_their_times(tmp_path: Path) -> None:
    """Qwen3-VL's, as transformers' processor writes them."""
    found = facts(tmp_path, family="qwen3_vl", fps=2)
    video = video_of(found)
    assert (video.of_all, video.sampling.spread, video.sampling.fps) == (True, "ends", 2.0)
    numbers = (0, 12, 24, 36, 49)
    one = layout(found, "video", (56, 84, 50, 30000, 1001, *numbers))
    groups, rows, columns = one.grid
    tokens = tokenizer()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens)
    theirs = FAMILIES["qwen3_vl"].processor(fast)
    theirs.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    said = VideoMetadata(50, fps=30000 / 1001, frames_indices=list(numbers))
    grid = torch.tensor([[groups, rows * 2, columns * 2]])
    true = theirs.replace_video_token({"video_grid_thw": grid, "video_metadata": [said]}, 0)
    pad = "<|video_pad|>"
    assert "".join(run.text + pad * run.rows for run in one.runs) + one.behind == true
    assert true.startswith("<0.2 seconds><|vision_start|><|video_pad|>")
    mark = found.kinds["video"].placeholder
    assert mark == f"<|vision_start|>{pad}<|vision_end|>"
    text = f"ab{mark}c"
    true = true.replace(pad * one.runs[0].rows, pad)
    assert with_runs(text, found, [one]) == f"ab{true}c"
    mine = Tokenizer.from_bytes(tokens.to_str().encode(), add_bos=False, bos_token_id=None)
    ids = with_one(mine.encode(text), mine.encode(mark), mine.special_tokens[pad])
    kinds: dict[int, MediaKind] = {mine.special_tokens[pad]: "video"}
    assert ids_with_runs(ids, found, kinds, [one], mine.encode) == mine.encode(f"ab{true}c")


def test_without_a_token_there_are_no_videos(tmp_path: Path) -> None:
    write_folder(tmp_path, FAMILIES["qwen2_vl"])
    values = Fields(json.loads((tmp_path / "config.json").read_text()), "config.json")
    found = read_media(tmp_path, values, (tmp_path / "tokenizer.json").read_bytes())
    assert found is not None
    assert list(found.kinds) == ["image"]
