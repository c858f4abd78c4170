"""LLaVA-OneVision's videos, against transformers on the same weights; and in any chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.forms.fixed import FixedFrames
from penstock.media.prepared import write
from penstock.protocol.from_worker import MediaFailed
from penstock.protocol.media import MediaItem
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.vision.sight import Sight
from tests.worker.driver import Job, LogitsOf
from tests.worker.models.parity import RELATIVE_TOLERANCE, compare_answer
from tests.worker.vision.picture_runners import answered, backend_of, message_of, runner_of
from tests.worker.vision.pictures import Prepared, picture, pixels_of, words
from tests.worker.vision.test_videos import BACKENDS, VIDEO, WANTED, Parts, answers_of, prompt_of
from tests.worker.vision.vision_cases import CASES, COLOURS, PLACEHOLDER, both

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CASE = "llava-onevision"
FRAMES = FixedFrames(pixels=COLOURS, height=24, width=24, rows=4)


def video(frames: int, seed: int) -> Prepared:
    shape = (frames, FRAMES.height, FRAMES.width, 3)
    arrays = {"frames": np.random.default_rng(seed).integers(0, 256, shape, np.uint8)}
    content = write(arrays)
    digest = hashlib.sha256(content).hexdigest()
    rows = frames * FRAMES.rows + 1
    item = MediaItem(digest, "video", rows, len(content), digest)
    return Prepared(item, content, FRAMES.inputs(arrays), (rows,))


def asked() -> list[Parts]:
    """transformers takes videos of the same number of frames."""
    first, second = video(3, 1), video(3, 2)
    shown = picture(CASES[CASE].preparation, 2, 3)
    return [
        [words(5, 1), first, words(9, 2)],
        [second, words(3, 3)],
        [words(7, 4), shown, words(2, 5), second, words(4, 6), first, words(6, 7)],
    ]


def theirs_of(model: Any, parts: Parts, more: Sequence[int]) -> torch.Tensor:
    """transformers' logits of the prompt and more tokens, [tokens, vocab]."""
    tokens, _ = prompt_of(parts)
    shown = [part for part in parts if isinstance(part, Prepared)]
    videos = [each for each in shown if each.item.kind == "video"]
    pictures = [each for each in shown if each.item.kind == "image"]
    also = pixels_of(model, pictures) if pictures else {}
    pixels = torch.stack([torch.from_numpy(each.inputs["pixel_values"]) for each in videos])
    with torch.inference_mode():
        found: torch.Tensor = model(
            torch.tensor([tokens + list(more)]), pixel_values_videos=pixels, **also
        ).logits[0]
    return found


def run(
    folder: Path, prompts: Sequence[Parts], *, budget: int, backend: str
) -> list[tuple[Job, torch.Tensor]]:
    """Each prompt's answer, and every logit of it. They are one batch, in steps of `budget`
    tokens."""
    _, ours = both(CASE)
    seen, pictures = LogitsOf(), CASES[CASE].preparation
    runner = runner_of(ours, pictures, observer=seen, cpu=backend_of(ours, backend))
    runner.feature(MediaEncodings).see_with(Sight(ours.tower, pictures, lambda: None, FRAMES))
    return answers_of(runner, folder, prompts, seen, budget)


@pytest.mark.parametrize("backend", BACKENDS)
def test_answers_to_fixed_videos_equal_transformers(backend: str, tmp_path: Path) -> None:
    theirs, _ = both(CASE)
    theirs.config.video_token_id = theirs.model.config.video_token_id = VIDEO
    compared = 0
    for (job, found), parts in zip(
        run(tmp_path, asked(), budget=19, backend=backend), asked(), strict=True
    ):
        answer = list(job.tokens)
        cut = next((n for n, token in enumerate(answer) if token in (PLACEHOLDER, VIDEO)), None)
        answer = answer[:cut]
        true = theirs_of(theirs, parts, answer)[: len(found)]
        compared += compare_answer(found, true, len(job.prompt), answer)
    assert compared >= WANTED


def test_bits_are_the_same_in_any_chunks_and_company(tmp_path: Path) -> None:
    together = run(tmp_path, asked(), budget=19, backend="cpu")
    for parts, (job, logits) in zip(asked(), together, strict=True):
        ((alone, found),) = run(tmp_path, [parts], budget=500, backend="cpu")
        assert alone.tokens == job.tokens
        assert torch.equal(found, logits)


def test_encodings_of_fixed_videos_equal_transformers() -> None:
    theirs, ours = both(CASE)
    for frames in (1, 5):
        shown = video(frames, frames)
        with torch.inference_mode():
            found = ours.tower.encode(ours.tower.read(shown.inputs))
            pixels = torch.from_numpy(shown.inputs["pixel_values"])[None]
            features = theirs.model.get_video_features(pixels).pooler_output[0]
        true = torch.cat((features, theirs.model.image_newline[None].detach()))
        assert found.shape == (shown.item.rows, ours.config.hidden_size) == true.shape
        assert bool(((found - true).abs() <= RELATIVE_TOLERANCE * true.abs().max()).all())


def test_a_video_that_is_not_what_was_said_is_refused(tmp_path: Path) -> None:
    _, ours = both(CASE)
    pictures = CASES[CASE].preparation
    runner = runner_of(ours, pictures)
    runner.feature(MediaEncodings).see_with(Sight(ours.tower, pictures, lambda: None, FRAMES))
    good = video(4, 9)
    item = MediaItem("1" * 64, "video", 16, good.item.size, good.item.digest)
    path = tmp_path / "wrong"
    path.write_bytes(good.content)
    answer = answered(runner, message_of(item, str(path)))
    assert isinstance(answer, MediaFailed)
    assert answer.code == "unfit", answer
