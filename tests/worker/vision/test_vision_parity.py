"""Models that see, against transformers on the same weights, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.worker.driver import Driver, LogitsOf
from tests.worker.models.parity import RELATIVE_TOLERANCE, compare_answer, run_recorded
from tests.worker.vision.gemma3n_cases import rows_of
from tests.worker.vision.picture_runners import backend_of, load, runner_of
from tests.worker.vision.pictures import (
    Prepared,
    as_given,
    job_of,
    of_one,
    picture,
    pixels_of,
    prompts,
    rows_of_parts,
    text_of,
    theirs_of,
)
from tests.worker.vision.sheet_models import rows_of_sheets
from tests.worker.vision.vision_cases import CASES, both

pytestmark = pytest.mark.slow

WANTED = 12
TOLERANCES = {"qwen3.5-moe": 5e-4}
"""Where rounding grows: with AVX-512's sums one of 239 tokens differs by 3e-4, half of them by less
than 1e-5."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES)
def test_encodings_of_pictures_equal_transformers(case: str) -> None:
    theirs, ours = both(case)
    for size, seed in ((1, 0), (2, 1), (5, 2)):
        shown = picture(CASES[case].preparation, size, seed)
        pixels = torch.from_numpy(shown.inputs["pixel_values"])
        with torch.inference_mode():
            found = ours.tower.encode(ours.tower.read(shown.inputs))
            if "grid_thw" in shown.inputs:
                grid = torch.from_numpy(shown.inputs["grid_thw"]).long()[None]
                given_pixels = as_given(theirs, pixels, list(grid))
                sees = theirs if case.endswith("-omni") else theirs.model
                seen = sees.get_image_features(given_pixels, grid)
                deep = getattr(seen, "deepstack_features", None) or ()
                features = torch.cat((of_one(seen.pooler_output), *deep), 1)
            elif "spatial_shapes" in shown.inputs:
                given = pixels_of(theirs, [shown])
                if "target_sizes" in given:
                    features = rows_of_parts(theirs, **given)
                else:
                    features = torch.cat(theirs.model.get_image_features(**given).pooler_output)
            elif "tile_grid" in shown.inputs:
                features = rows_of_sheets(theirs, shown.item.rows, pixels_of(theirs, [shown]))
            elif theirs.config.model_type == "gemma3n":
                features = rows_of(theirs, pixels)
            elif hasattr(theirs.config, "scale_factor"):
                features = theirs.model.get_image_features(pixels[None]).pooler_output.flatten(0, 1)
            elif hasattr(theirs, "vision_model"):
                seen = theirs.get_image_features(pixels, "default").last_hidden_state
                features = theirs.multi_modal_projector(seen.flatten(0, 1))
            else:
                said = {
                    key: getattr(theirs.config, key)
                    for key in ("vision_feature_layer", "vision_feature_select_strategy")
                    if hasattr(theirs.config, key)
                }
                given = pixels_of(theirs, [shown])
                found_features = theirs.model.get_image_features(**given, **said)
                levels = getattr(found_features, "deepstack_features", None)
                if levels:  # what is added to the decoder's first input comes first
                    levels = sorted(levels, key=lambda each: each[0] > 0)
                    features = torch.cat([torch.cat(each) for _, each in levels], 1)
                else:
                    features = torch.cat(list(found_features.pooler_output)).flatten(0, -2)
        features = features * ours.tower.spec.row_multiplier  # theirs are multiplied later
        width = ours.tower.spec.row_width(ours.config.hidden_size)
        assert found.shape == (shown.item.rows, width) == features.shape
        allowed = RELATIVE_TOLERANCE * features.abs().max()
        assert bool(((found - features).abs() <= allowed).all())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_answers_to_pictures_equal_transformers(case: str, backend: str, tmp_path: Path) -> None:
    """Several sequences in a batch, in steps of 37 tokens, so that items lie across their ends; of
    as many as joined pictures have with the text between them."""
    theirs, ours = both(case)
    asked = prompts(CASES[case].preparation)
    vision = ours.config.vision
    assert vision is not None
    seen = LogitsOf()
    runner = runner_of(ours, CASES[case].preparation, observer=seen, cpu=backend_of(ours, backend))
    shown = {
        part.item.name: part for parts in asked for part in parts if isinstance(part, Prepared)
    }
    load(runner, tmp_path, *shown.values())
    jobs = [job_of(parts, WANTED, whole_spans=vision.spans_whole) for parts in asked]
    joined = [job.media.spans for job in jobs if job.media is not None and job.media.joined]
    budget = max([37, *(spans[-1].end - spans[0].offset for spans in joined)])
    driver = Driver(runner, num_blocks=128, slots=8, budget=budget)
    driver.encode = list(shown)
    compared = 0
    answers = run_recorded(driver, jobs, seen)
    for (job, found), parts in zip(answers, asked, strict=True):
        assert job.error is None
        tokens = text_of(job.tokens)
        true = theirs_of(theirs, parts, tokens)[: len(found)]
        compared += compare_answer(
            found[:, : true.shape[1]],
            true,
            len(job.prompt),
            tokens,
            TOLERANCES.get(case, RELATIVE_TOLERANCE),
        )
    assert compared >= len(jobs) * WANTED // 2
