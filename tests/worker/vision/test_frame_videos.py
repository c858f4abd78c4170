"""Videos whose frames are pictures, or whose rows have pictures' token, against transformers on the
same weights; and in any chunks: Gemma 4's, GLM's, InternVL's and MiniCPM-V's. MiniMax M3's, whose
frames see those of some groups, and Molmo 2's, whose frames all see one another."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.forms.fixed import FixedFrames
from penstock.forms.overlapping import MarkedFrames, OverlappingImages
from penstock.forms.patches import VideoFrames
from penstock.forms.pooled import PooledFrames, PooledImages
from penstock.forms.registry import VideoPreparation
from penstock.forms.sliced import SlicedFrames, SlicedImages
from penstock.forms.video import GroupTexts, VideoShape
from penstock.media.layout import layout
from penstock.media.prepared import write
from penstock.media.video import prepare_frames, raw_frames
from penstock.media.wire import ItemBounds
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.protocol.from_worker import MediaFailed
from penstock.protocol.media import Media, MediaItem
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.vision.sight import Sight
from tests.worker.driver import Job, LogitsOf
from tests.worker.media_prompts import media_prompt
from tests.worker.models.parity import compare_answer
from tests.worker.vision.picture_runners import answered, backend_of, message_of, runner_of
from tests.worker.vision.pictures import (
    Prepared,
    masks_of,
    patches_of,
    picture,
    pixels_of,
    rows_of_parts,
    words,
)
from tests.worker.vision.test_videos import BACKENDS, VIDEO, WANTED, Parts, answers_of
from tests.worker.vision.vision_cases import CASES, COLOURS, PLACEHOLDER, both

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TEXTS = GroupTexts(begin="<", end=">", stamp="clock")
BOUNDS = ItemBounds(pixels=1 << 20, seconds=60.0, frames=64, all_pixels=1 << 22)


def preparation_of(case: str) -> VideoPreparation:
    pictures = CASES[case].preparation
    if isinstance(pictures, PooledImages):
        patch, merge = pictures.patch, pictures.merge
        return PooledFrames(pixels=pictures.pixels, patch=patch, merge=merge, most=12, texts=TEXTS)
    if isinstance(pictures, SlicedImages):
        return SlicedFrames(image=pictures)
    if isinstance(pictures, OverlappingImages):
        image = msgspec.structs.replace(pictures, begin=195, end=196, lines=False, pool=(2, 2))
        return MarkedFrames(image=image, texts=GroupTexts(between=" ", stamp="plain"))
    if case == "internvl":
        return FixedFrames(pixels=COLOURS, height=24, width=24, rows=4, texts=TEXTS)
    return VideoFrames(
        pixels=COLOURS,
        min_pixels=64,
        max_pixels=4096,
        patch=4,
        merge=2,
        texts=TEXTS,
        of_all=case != "minimax-m3",
    )


FAMILIES = (
    "gemma4",
    "gemma4-12b",
    "glm4v",
    "glm4v-moe",
    "glm4.6v",
    "internvl",
    "minicpm-v",
    "minimax-m3",
    "molmo2",
    "molmo2-o",
)
BUDGETS = {"molmo2": 150, "molmo2-o": 150}
"""Tokens of a step, where all from the first frame to the last are computed in one."""
OF_PICTURES = ("glm4v", "glm4v-moe", "glm4.6v", "internvl", "molmo2", "molmo2-o")
"""Their videos' rows have the token of pictures."""


def video(case: str, frames: int, height: int, width: int, seed: int) -> Prepared:
    made = preparation_of(case)
    noise = np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), np.uint8)
    given = raw_frames(noise.tobytes(), (width, height, 2, 1))
    arrays, shape = prepare_frames(made, given, BOUNDS)
    assert shape == VideoShape(height, width, frames, Fraction(2), tuple(range(frames)))
    own = KindFacts(preparation=made, placeholder="v", token="v", token_id=VIDEO)
    laid = layout(MediaFacts(kinds={"video": own}), "video", shape.flat())
    content = write(arrays)
    digest = hashlib.sha256(content).hexdigest()
    item = MediaItem(digest, "video", laid.rows, len(content), digest, laid.grid)
    spans = tuple(run.rows for run in laid.runs)
    return Prepared(item, content, made.inputs(arrays), spans)


def prompt_of(case: str, parts: Parts) -> tuple[list[int], Media | None]:
    def token_of(item: MediaItem) -> int:
        return VIDEO if item.kind == "video" and case not in OF_PICTURES else PLACEHOLDER

    return media_prompt(parts, token_of, before=[9, 8], joined=case.startswith("molmo2"))


def asked_of(case: str) -> list[Parts]:
    short, long = video(case, 2, 17, 30, 1), video(case, 5, 40, 31, 2)
    mixed: Parts = [words(7, 4), long, words(4, 6), short, words(6, 7)]
    if "glm" not in case:  # transformers takes none of GLM's pictures in a prompt with videos
        mixed[1:1] = [picture(CASES[case].preparation, 2, 3), words(2, 5)]
    return [[words(5, 1), short, words(9, 2)], [long, words(3, 3)], mixed]


def theirs_of(case: str, model: Any, parts: Parts, more: Sequence[int]) -> torch.Tensor:
    """transformers' logits of the prompt and more tokens, [tokens, vocab]."""
    tokens, _ = prompt_of(case, parts)
    given: torch.Tensor | None = torch.tensor([tokens + list(more)])
    assert given is not None
    shown = [part for part in parts if isinstance(part, Prepared)]
    videos = [each for each in shown if each.item.kind == "video"]
    pictures = [each for each in shown if each.item.kind == "image"]
    also: dict[str, Any] = {}
    if case == "internvl":
        pixels = [torch.from_numpy(each.inputs["pixel_values"]) for each in shown]
        also["pixel_values"] = torch.cat(pixels)
    elif case.startswith("molmo2"):
        also = pixels_of(model, shown)
    elif case == "minicpm-v":
        seen = [
            rows_of_parts(model, **floats_of(model, pixels_of(model, [each]))) for each in shown
        ]  # those of videos go through the same function there
        embedded = model.get_input_embeddings()(given)
        places = ((given == VIDEO) | (given == PLACEHOLDER))[..., None].expand_as(embedded)
        also["inputs_embeds"] = embedded.masked_scatter(places, torch.cat(seen))
        given = None
    elif case.startswith("gemma4"):
        also = pixels_of(model, pictures) if pictures else {}
        frames = [torch.from_numpy(frame)[None] for each in videos for frame in each.inputs[PIXELS]]
        sees = model.config.vision_config
        found = patches_of(frames, getattr(sees, "model_patch_size", sees.patch_size))
        also["pixel_values_videos"] = found["pixel_values"][None]
        also["video_position_ids"] = found["image_position_ids"][None]
        kinds = (given == PLACEHOLDER).int() + 2 * (given == VIDEO).int()
        also["mm_token_type_ids"] = kinds
        if case == "gemma4-12b":
            also["attention_mask"] = masks_of(model, kinds)
    else:
        pixels = [torch.from_numpy(each.inputs["pixel_values"]) for each in videos]
        grids = [torch.from_numpy(each.inputs["grid_thw"]).long() for each in videos]
        also = {"pixel_values_videos": torch.cat(pixels), "video_grid_thw": torch.stack(grids)}
        if pictures:
            shown_pixels = [torch.from_numpy(each.inputs["pixel_values"]) for each in pictures]
            shapes = [torch.from_numpy(each.inputs["grid_thw"]).long() for each in pictures]
            also |= {"pixel_values": torch.cat(shown_pixels), "image_grid_thw": torch.stack(shapes)}
        if "glm" in case:
            also["mm_token_type_ids"] = 2 * (given == PLACEHOLDER).int()
    with torch.inference_mode():
        found_logits: torch.Tensor = model(given, **also).logits[0].float()
    return found_logits


def floats_of(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs, floats of the model's own type."""
    return {
        name: each.to(model.dtype) if each.is_floating_point() else each
        for name, each in inputs.items()
    }


PIXELS = "pixel_values"
PRECISE = ("minicpm-v",)
"""Cases in which transformers computes in float64: its gated delta nets in float32 are further from
that than the tolerance, which ours aren't."""


def run(
    case: str, folder: Path, asked: Sequence[Parts], *, budget: int, backend: str
) -> list[tuple[Job, torch.Tensor]]:
    """Each prompt's answer, and every logit of it. They are one batch, in steps of `budget`
    tokens."""
    _, ours = both(case)
    seen, pictures = LogitsOf(), CASES[case].preparation
    runner = runner_of(ours, pictures, observer=seen, cpu=backend_of(ours, backend))
    sight = Sight(ours.tower, pictures, lambda: None, preparation_of(case))
    runner.feature(MediaEncodings).see_with(sight)
    prompts = [prompt_of(case, parts) for parts in asked]
    return answers_of(
        runner,
        folder,
        asked,
        seen,
        budget,
        prompts,
        whole_spans=case.startswith(("gemma4", "molmo2")),
    )


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_answers_to_videos_of_frames_equal_transformers(
    case: str, backend: str, tmp_path: Path
) -> None:
    theirs, _ = both(case)
    if case in PRECISE:
        theirs = copy.deepcopy(theirs).double()
    if case.startswith("gemma4"):
        theirs.config.video_token_id = theirs.model.config.video_token_id = VIDEO
    compared, asked = 0, asked_of(case)
    answers = run(case, tmp_path, asked, budget=BUDGETS.get(case, 33), backend=backend)
    for (job, found), parts in zip(answers, asked, strict=True):
        answer = list(job.tokens)
        cut = next((n for n, token in enumerate(answer) if token in (PLACEHOLDER, VIDEO)), None)
        answer = answer[:cut]
        true = theirs_of(case, theirs, parts, answer)[: len(found)]
        # Molmo 2's head has no numbers for further tokens.
        found = found[:, : true.shape[1]]
        compared += compare_answer(found, true, len(job.prompt), answer)
    assert compared >= WANTED


@pytest.mark.parametrize("case", FAMILIES)
def test_bits_are_the_same_in_any_chunks_and_company(case: str, tmp_path: Path) -> None:
    asked = asked_of(case)
    together = run(case, tmp_path, asked, budget=BUDGETS.get(case, 33), backend="cpu")
    for parts, (job, logits) in zip(asked, together, strict=True):
        ((alone, found),) = run(case, tmp_path, [parts], budget=500, backend="cpu")
        assert alone.tokens == job.tokens
        assert torch.equal(found, logits)


@pytest.mark.parametrize("case", FAMILIES)
def test_a_video_that_is_not_what_was_said_is_refused(case: str, tmp_path: Path) -> None:
    _, ours = both(case)
    pictures = CASES[case].preparation
    runner = runner_of(ours, pictures)
    sight = Sight(ours.tower, pictures, lambda: None, preparation_of(case))
    runner.feature(MediaEncodings).see_with(sight)
    good = video(case, 4, 17, 30, 9)
    item = msgspec.structs.replace(good.item, name="1" * 64, rows=good.item.rows + 1)
    path = tmp_path / "wrong"
    path.write_bytes(good.content)
    answer = answered(runner, message_of(item, str(path)))
    assert isinstance(answer, MediaFailed)
    assert answer.code == "unfit", answer
