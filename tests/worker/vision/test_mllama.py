"""Llama 3.2 Vision against transformers on the same weights, in float32."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.forms.aspects import aspect_forms
from penstock.media.prepared import write
from penstock.protocol.media import Media, MediaItem, MediaSpan
from tests.worker.driver import Driver, Job, LogitsOf
from tests.worker.models.parity import RELATIVE_TOLERANCE, compare_answer, run_recorded
from tests.worker.vision.mllama_cases import OF_MLLAMA, TILE, TOKEN, takes_inputs
from tests.worker.vision.picture_runners import load, runner_of
from tests.worker.vision.pictures import Prepared, words
from tests.worker.vision.vision_cases import Ours, opened, saved

pytestmark = pytest.mark.slow

WANTED = 10


@cache
def both() -> tuple[Any, Ours]:
    """transformers' model, all of whose numbers are random, gates too; and ours."""
    import transformers

    torch.manual_seed(7)
    config = OF_MLLAMA["mllama"].config()
    config._attn_implementation = "eager"
    model = takes_inputs(transformers.MllamaForConditionalGeneration(config).eval())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "gate" in name.rpartition(".")[2]:
                parameter.normal_(0, 0.5)
            elif "norm" in name:
                parameter.normal_(1, 0.3)
            elif "positional" in name or "class_embedding" in name:
                parameter.normal_(0, 0.3)
    folder = TemporaryDirectory()
    _FOLDERS.append(folder)
    return model, opened(*saved(model, Path(folder.name)))


_FOLDERS: list[TemporaryDirectory[str]] = []


def picture(high: int, wide: int, seed: int) -> Prepared:
    noise = np.random.default_rng(seed).integers(0, 256, (high, wide, 3), np.uint8)
    arrays = TILE.prepare(Image.fromarray(noise))
    rows, content = TILE.runs((high, wide)).runs[0].rows, write(arrays)
    digest = hashlib.sha256(content).hexdigest()
    item = MediaItem(digest, "image", rows, len(content), digest, ())
    return Prepared(item, content, TILE.inputs(arrays), (rows,))


def given(shown: list[Prepared]) -> dict[str, torch.Tensor]:
    """What transformers' processor gives of pictures."""
    forms, most = aspect_forms(4), 4
    pixels = torch.zeros(len(shown), most, 3, 16, 16)
    ids, mask = torch.zeros(1, len(shown), dtype=torch.long), torch.zeros(1, len(shown), most)
    for number, each in enumerate(shown):
        tiles = torch.from_numpy(each.inputs["pixel_values"])
        pixels[number, : len(tiles)], mask[0, number, : len(tiles)] = tiles, 1
        ids[0, number] = 1 + forms.index(tuple(each.inputs["tile_grid"].tolist()))
    return {
        "pixel_values": pixels[None],
        "aspect_ratio_ids": ids,
        "aspect_ratio_mask": mask.long(),
    }


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [(16, 16), (20, 40), (40, 20), (60, 60), (9, 70), (70, 9)])
def test_encodings_of_mllama_equal_transformers(size: tuple[int, int]) -> None:
    theirs, ours = both()
    shown = picture(*size, seed=size[0])
    with torch.inference_mode():
        found = ours.tower.encode(ours.tower.read(shown.inputs))
        seen = theirs.model.vision_model(**given([shown])).last_hidden_state
        tiles = theirs.model.multi_modal_projector(seen)[0, 0]
    features = tiles[: len(shown.inputs["pixel_values"])].flatten(0, 1)
    assert found.shape == (shown.item.rows, 72)
    found, last = found[:-1], found[-1]
    assert found.shape == features.shape
    assert not last.any()
    allowed = RELATIVE_TOLERANCE * features.abs().max()
    assert bool(((found - features).abs() <= allowed).all())


Part = list[int] | Prepared


def job_of(parts: list[Part]) -> tuple[Job, list[int]]:
    """Ours, in which a picture's rows stand before its token; and the prompt without rows."""
    tokens: list[int] = []
    plain: list[int] = []
    items, spans = [], []
    for part in parts:
        if isinstance(part, Prepared):
            spans.append(MediaSpan(len(items), len(tokens), part.item.rows, 0))
            items.append(part.item)
            tokens += [TOKEN] * part.item.rows
            plain.append(TOKEN)
        else:
            tokens += part
            plain += part
    media = Media(tuple(items), tuple(spans)) if items else None
    return Job(tokens, WANTED, media=media), plain


@contextmanager
def as_makers_have_it(model: Any) -> Iterator[None]:
    """A token before all pictures gets nothing of the attention to them: transformers 5.17 lets it
    see all of them, those behind it too."""
    handles, masks = [], {}
    for number, layer in enumerate(model.model.language_model.layers):
        if not hasattr(layer, "cross_attn"):
            continue

        def keep(_: Any, args: Any, kwargs: Any, at: int = number) -> None:
            masks[at] = kwargs["full_text_row_masked_out_mask"]

        def hide(_: Any, args: Any, found: Any, at: int = number) -> Any:
            mask = masks[at]
            return found if mask is None else (found[0] * mask[:, 0], *found[1:])

        handles.append(layer.register_forward_pre_hook(keep, with_kwargs=True))
        handles.append(layer.cross_attn.register_forward_hook(hide))
    yield
    for handle in handles:
        handle.remove()


def theirs_of(model: Any, parts: list[Part], tokens: list[int]) -> torch.Tensor:
    """Logits of all tokens, [tokens, vocabulary]."""
    from transformers.models.mllama.processing_mllama import (
        convert_sparse_cross_attention_mask_to_dense,
        get_cross_attention_token_mask,
    )

    shown = [part for part in parts if isinstance(part, Prepared)]
    also: dict[str, torch.Tensor] = {}
    if shown:
        masks = [get_cross_attention_token_mask(tokens, TOKEN)]
        counts = [[len(each.inputs["pixel_values"]) for each in shown]]
        dense = convert_sparse_cross_attention_mask_to_dense(masks, counts, 4, len(tokens))
        also = given(shown) | {"cross_attention_mask": torch.from_numpy(dense)}
    with torch.inference_mode(), as_makers_have_it(model):
        found: torch.Tensor = model(torch.tensor([tokens]), **also).logits[0].float()
    return found


SMALL, LARGE, LONG = picture(16, 16, 1), picture(50, 50, 2), picture(10, 60, 3)
PROMPTS: list[list[Part]] = [
    [words(40, 0)],
    [LARGE, words(9, 1)],
    [words(5, 2), LONG, words(30, 3)],
    [words(7, 4), SMALL, words(12, 5), LONG, words(6, 6)],
    [SMALL, LONG, words(11, 7)],
    [words(3, 8), SMALL, SMALL, words(4, 9), LARGE, words(60, 10)],
]


@pytest.mark.timeout(180)
def test_answers_of_mllama_equal_transformers(tmp_path: Path) -> None:
    """Several sequences in a batch, in steps of 37 tokens, so that pictures lie across their
    ends."""
    theirs, ours = both()
    seen = LogitsOf()
    runner = runner_of(ours, TILE, observer=seen)
    parts = [part for prompt in PROMPTS for part in prompt]
    shown = {part.item.name: part for part in parts if isinstance(part, Prepared)}
    load(runner, tmp_path, *shown.values())
    jobs, plain = zip(*map(job_of, PROMPTS), strict=True)
    driver = Driver(runner, num_blocks=128, slots=8, budget=37)
    driver.encode = list(shown)
    compared = 0
    answers = run_recorded(driver, list(jobs), seen)
    for (job, found), parts, tokens in zip(answers, PROMPTS, plain, strict=True):
        assert job.error is None
        spans = () if job.media is None else job.media.spans
        apart = {at for span in spans for at in range(span.offset, span.end - 1)}
        # Rows of pictures have no logits.
        found = found[[at for at in range(len(found)) if at not in apart]]
        true = theirs_of(theirs, parts, tokens + job.tokens)[: len(found)]
        assert bool((found[:, true.shape[1] :] < -1e29).all())
        compared += compare_answer(
            found[:, : true.shape[1]], true, len(tokens), job.tokens, RELATIVE_TOLERANCE
        )
    assert compared >= len(jobs) * WANTED // 2
