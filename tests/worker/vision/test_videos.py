"""Videos in prompts, against transformers on the same weights; and in any chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.forms.patches import PatchImages, VideoFrames
from penstock.media.prepared import write
from penstock.protocol.from_worker import MediaFailed
from penstock.protocol.media import Media, MediaItem
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.steps.runner import StepRunner
from penstock_worker.vision.sight import Sight
from tests.worker.driver import Driver, Job, LogitsOf
from tests.worker.media_prompts import media_prompt
from tests.worker.models.parity import RELATIVE_TOLERANCE, compare_answer, run_recorded
from tests.worker.vision.picture_runners import answered, backend_of, load, message_of, runner_of
from tests.worker.vision.pictures import Prepared, picture, words
from tests.worker.vision.vision_cases import CASES, COLOURS, PLACEHOLDER, Ours, both

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

VIDEO = 191
"""config.video_token_id of the cases."""
FRAMES = VideoFrames(pixels=COLOURS, min_pixels=64, max_pixels=4096, patch=4, merge=2)
QWEN = ("qwen2-vl", "qwen2.5-vl", "exaone-4.5", "qwen3-vl", "qwen3.5")
STAMPED = ("qwen3-vl", "qwen3.5")
BACKENDS = ("reference", "cpu")
WANTED = 8
Parts = list[list[int] | Prepared]


def video(
    frames: int, rows: int, columns: int, seed: int, *step: int, stamped: bool = False
) -> Prepared:
    """rows, columns: of merged patches.  step: numerator and denominator.  stamped: whether each
    group of frames has a span of its own."""
    side = FRAMES.patch * FRAMES.merge
    shape = (frames, rows * side, columns * side, 3)
    arrays = {"frames": np.random.default_rng(seed).integers(0, 256, shape, np.uint8)}
    content = write(arrays)
    digest = hashlib.sha256(content).hexdigest()
    groups = -(-frames // FRAMES.group)
    count = groups * rows * columns
    item = MediaItem(digest, "video", count, len(content), digest, (groups, rows, columns, *step))
    spans = (rows * columns,) * groups if stamped else (count,)
    return Prepared(item, content, FRAMES.inputs(arrays), spans)


def prompt_of(parts: Sequence[list[int] | Prepared]) -> tuple[list[int], Media | None]:
    def token_of(item: MediaItem) -> int:
        return VIDEO if item.kind == "video" else PLACEHOLDER

    return media_prompt(parts, token_of, before=[9, 8])  # a time


def theirs_of(
    model: Any, parts: Sequence[list[int] | Prepared], more: Sequence[int], seconds: float
) -> torch.Tensor:
    """transformers' logits of the prompt and more tokens, [tokens, vocab]. seconds: of a group."""
    tokens, _ = prompt_of(parts)
    given = torch.tensor([tokens + list(more)])
    also: dict[str, Any] = {}
    for kind, pixels, grids in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        shown = [each for each in parts if isinstance(each, Prepared) and each.item.kind == kind]
        if shown:
            also[pixels] = torch.cat(
                [torch.from_numpy(each.inputs["pixel_values"]) for each in shown]
            )
            also[grids] = torch.stack(
                [torch.from_numpy(each.inputs["grid_thw"]).long() for each in shown]
            )
            if kind == "video" and "2_5" in type(model).__name__:
                also["second_per_grid_ts"] = torch.tensor([seconds] * len(shown))
    types = (given == PLACEHOLDER).int() + 2 * (given == VIDEO).int()
    with torch.inference_mode():
        found: torch.Tensor = model(given, mm_token_type_ids=types, **also).logits[0].float()
    return found


def seeing_runner(
    ours: Ours, case: str, observer: LogitsOf | None = None, backend: str = "reference"
) -> StepRunner[Any]:
    pictures = CASES[case].preparation
    runner = runner_of(ours, pictures, observer=observer, cpu=backend_of(ours, backend))
    sight = Sight(ours.tower, pictures, lambda: None, FRAMES)
    runner.feature(MediaEncodings).see_with(sight)
    return runner


def answers_of(
    runner: StepRunner[Any],
    folder: Path,
    asked: Sequence[Parts],
    seen: LogitsOf,
    budget: int,
    prompts: Sequence[tuple[list[int], Media | None]] = (),
    *,
    whole_spans: bool = False,
) -> list[tuple[Job, torch.Tensor]]:
    """Each prompt's answer, and every logit of it, which `seen` has. They are one batch, in steps
    of `budget` tokens. folder: for what was prepared. prompts: of `asked`, where they aren't those
    of `prompt_of`."""
    shown = {
        part.item.name: part for parts in asked for part in parts if isinstance(part, Prepared)
    }
    load(runner, folder, *shown.values())
    driver = Driver(runner, num_blocks=128, slots=8, budget=budget)
    driver.encode = list(shown)
    jobs = [
        Job(tokens, WANTED, media=media, whole_spans=whole_spans)
        for tokens, media in prompts or [prompt_of(parts) for parts in asked]
    ]
    answers = run_recorded(driver, jobs, seen)
    assert all(job.error is None for job in jobs)
    return answers


def run(
    case: str, folder: Path, asked: Sequence[Parts], *, budget: int, backend: str = "reference"
) -> list[tuple[Job, torch.Tensor]]:
    """Each prompt's answer, and every logit of it. They are one batch, in steps of `budget`
    tokens."""
    _, ours = both(case)
    seen = LogitsOf()
    runner = seeing_runner(ours, case, seen, backend)
    return answers_of(runner, folder, asked, seen, budget)


def asked_of(case: str) -> tuple[list[Parts], float]:
    """Prompts, and the seconds of a group of frames. Positions in time don't reach behind the
    longer side: there transformers counts on in another way (see test_slot_media)."""
    timed, seconds = case == "qwen2.5-vl", 1.0
    step = (2, 1) if timed else ()
    stamped = case in STAMPED
    short = video(4, 2, 4, 1, *step, stamped=stamped)
    long = video(5, 3, 5, 2, *step, stamped=stamped)
    shown = picture(CASES[case].preparation, 2, 3)
    return [
        [words(5, 1), short, words(9, 2)],
        [long, words(3, 3)],
        [words(7, 4), shown, words(2, 5), long, words(4, 6), short, words(6, 7)],
    ], seconds


@pytest.mark.parametrize("case", QWEN)
@pytest.mark.parametrize("backend", BACKENDS)
def test_answers_to_videos_equal_transformers(case: str, backend: str, tmp_path: Path) -> None:
    theirs, _ = both(case)
    theirs.config.vision_config.tokens_per_second = 2
    asked, seconds = asked_of(case)
    answers = run(case, tmp_path, asked, budget=19, backend=backend)
    compared = 0
    for (job, found), parts in zip(answers, asked, strict=True):
        answer = list(job.tokens)
        cut = next((n for n, token in enumerate(answer) if token in (PLACEHOLDER, VIDEO)), None)
        answer = answer[:cut]
        true = theirs_of(theirs, parts, answer, seconds)[: len(found)]
        compared += compare_answer(found, true, len(job.prompt), answer)
    assert compared >= len(answers) * WANTED // 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_bits_are_the_same_in_any_chunks_and_company(backend: str, tmp_path: Path) -> None:
    asked, _ = asked_of("qwen2.5-vl")
    together = run("qwen2.5-vl", tmp_path, asked, budget=19, backend=backend)
    for parts, (job, logits) in zip(asked, together, strict=True):
        for budget in (7, 500):
            ((alone, found),) = run("qwen2.5-vl", tmp_path, [parts], budget=budget, backend=backend)
            assert alone.tokens == job.tokens
            assert torch.equal(found, logits)


@pytest.mark.parametrize("case", QWEN)
def test_encodings_of_videos_equal_transformers(case: str) -> None:
    theirs, ours = both(case)
    for frames, rows, columns in ((1, 2, 2), (6, 3, 4), (5, 5, 2)):
        shown = video(frames, rows, columns, frames)
        with torch.inference_mode():
            found = ours.tower.encode(ours.tower.read(shown.inputs))
            features = theirs.model.get_video_features(
                torch.from_numpy(shown.inputs["pixel_values"]),
                torch.from_numpy(shown.inputs["grid_thw"]).long()[None],
            ).pooler_output[0]
        found = found[:, : ours.config.hidden_size]  # DeepStack's rows are behind
        assert found.shape == (shown.item.rows, ours.config.hidden_size) == features.shape
        allowed = RELATIVE_TOLERANCE * features.abs().max()
        assert bool(((found - features).abs() <= allowed).all())


def test_a_video_that_is_not_what_was_said_is_refused(tmp_path: Path) -> None:
    _, ours = both("qwen2.5-vl")
    runner = seeing_runner(ours, "qwen2.5-vl")
    good = video(4, 2, 3, 9, 3, 2)
    load(runner, tmp_path, good)
    for grid in ((1, 2, 3, 3, 2), (2, 3, 2, 3, 2), ()):
        item = MediaItem("1" * 64, "video", 12, good.item.size, good.item.digest, grid)
        path = tmp_path / "wrong"
        path.write_bytes(good.content)
        answer = answered(runner, message_of(item, str(path)))
        assert isinstance(answer, MediaFailed)
        assert answer.code == "unfit", answer


def test_one_frame_is_a_picture() -> None:
    pixels = np.random.default_rng(4).integers(0, 256, (1, 16, 24, 3), np.uint8)
    pictures = PatchImages(pixels=COLOURS, min_pixels=64, max_pixels=4096, patch=4, merge=2)
    one, other = pictures.inputs({"pixels": pixels}), FRAMES.inputs({"frames": pixels})
    assert all(np.array_equal(one[name], other[name]) for name in one)
