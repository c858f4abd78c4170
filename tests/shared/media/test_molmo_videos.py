"""Molmo 2's videos: which frames are shown, what stands for them, and what folders say; as their
makers' processor has it, of which transformers has no class."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.video import VideoShape
from penstock.media.changes import facts_with
from penstock.media.layout import layout
from penstock.media.placeholders import with_rows, with_runs
from penstock.media.sampling import sampled
from penstock.model.media_facts import MediaFacts
from penstock.prepare.media import read_media
from penstock.text.tokenizer import Tokenizer
from tests.shared.media.media_tokenizer import OF_VIDEOS, tokenizer
from tests.shared.media.molmo_pictures import MOLMO, VIDEO_SETTINGS, frames_shown, frames_text
from tests.shared.media.picture_families import FAMILIES
from tests.shared.media.picture_family import write_folder
from tests.shared.media.test_frame_texts import LENGTHS, NUMBERS, RATE, TOTAL, video_of


def molmo2_of(folder: Path, **own: Any) -> MediaFacts:
    """What a folder of Molmo 2 says. own: settings of its video processor."""
    family = FAMILIES["molmo2"]
    write_folder(folder, family, *OF_VIDEOS)
    (folder / "video_preprocessor_config.json").write_text(json.dumps(VIDEO_SETTINGS | own))
    values = (folder / "config.json").read_text()
    content = (folder / "tokenizer.json").read_bytes()
    found = read_media(folder, Fields(json.loads(values), "config.json"), content)
    assert found is not None
    return found


@pytest.mark.parametrize(("fps", "most"), [(2, 384), (1.5, 32), (30, 5)])
def test_frames_of_molmo2_end_with_the_last(fps: float, most: int, tmp_path: Path) -> None:
    video = video_of(molmo2_of(tmp_path, max_fps=fps, num_frames=most))
    for total, rate in LENGTHS:
        true = frames_shown(total, float(rate), fps, most)
        assert list(sampled(total, rate, video.sampling, 1)) == true, (total, rate)


def test_texts_and_ids_of_molmo2_are_its_makers(tmp_path: Path) -> None:
    facts = molmo2_of(tmp_path)
    shape = VideoShape(33, 20, TOTAL, RATE, NUMBERS)
    one, fast = layout(facts, "video", shape.flat()), tokenizer(*MOLMO, *OF_VIDEOS)
    made = frames_text([number / float(RATE) for number in NUMBERS], 2, 2)
    mine = Tokenizer.from_bytes(fast.to_str().encode(), add_bos=False, bos_token_id=None)
    prompt = with_runs("ab<|video|>\nc", facts, [one])
    ids, spans = with_rows(mine.encode(prompt), facts, [one])
    assert ids == fast.encode(f"ab{made}\nc").ids
    assert [span.end - span.offset for span in spans] == [6] * len(NUMBERS)
    few = facts_with(facts, {}, {"num_frames": 6, "fps": 1}, ("video",))
    assert len(sampled(1000, Fraction(10), video_of(few).sampling, 1)) == 6


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"frame_sample_mode": "fps"}, "frame_sample_mode"),
        ({"max_fps": 0}, "num_frames"),
        ({"num_frames": 5000}, "num_frames"),
        ({"pooling_size": [3]}, "pooling_size"),
        ({"patch_size": 5}, "patch_size"),
        ({"resample": 3}, "resample"),
        ({"slow_motion": 2}, "slow_motion is not known"),
    ],
)
def test_settings_of_molmo2_that_are_not_followed(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        molmo2_of(tmp_path, **wrong)


def test_a_folder_that_says_nothing_of_videos_takes_none(tmp_path: Path) -> None:
    molmo2_of(tmp_path)
    (tmp_path / "video_preprocessor_config.json").unlink()
    values = json.loads((tmp_path / "config.json").read_text())
    content = (tmp_path / "tokenizer.json").read_bytes()
    found = read_media(tmp_path, Fields(values, "config.json"), content)
    assert found is not None
    assert list(found.kinds) == ["image"]
