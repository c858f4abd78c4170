"""A decoder in whole numbers behind a tower in floats: on load, and in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.formats.fields import Fields
from penstock.prepare.quantised.compressed_tensors import read_compressed_tensors
from tests.worker.driver import Driver, LogitsOf
from tests.worker.quantised_checkpoints import compressed
from tests.worker.quantised_writers import packed
from tests.worker.vision.picture_runners import load, on_cpu, runner_of
from tests.worker.vision.pictures import Prepared, job_of, prompts
from tests.worker.vision.vision_cases import CASES, Ours, both, make_theirs, opened, saved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CASE = "qwen2.5-vl"


def logits_of(ours: Ours, folder: Path, **options: Any) -> torch.Tensor:
    """Logits of a prompt with a picture, and of the token after it."""
    asked = prompts(CASES[CASE].preparation)[1]
    seen = LogitsOf()
    runner = runner_of(
        ours, CASES[CASE].preparation, observer=seen, cpu=on_cpu(ours, "auto", **options)
    )
    load(runner, folder, *(part for part in asked if isinstance(part, Prepared)))
    driver = Driver(runner, num_blocks=128, slots=8, budget=37)
    driver.encode = [part.item.name for part in asked if isinstance(part, Prepared)]
    job = job_of(asked, 1)
    slot = 0
    while not job.done:
        driver._step([job])
        slot = slot if job.slot is None else job.slot
    assert job.error is None
    return seen.of(slot)


def distance(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found - true).abs().mean() / true.abs().mean())


def test_a_decoder_that_is_quantised_on_load(tmp_path: Path) -> None:
    _, ours = both(CASE)
    true = logits_of(ours, tmp_path)
    rough = logits_of(ours, tmp_path, quantization="int8")
    assert 0 < distance(rough, true) < 0.1


def test_a_checkpoint_whose_decoder_is_quantised(tmp_path: Path) -> None:
    """Its tower is as it was, and it says what its decoder's numbers mean as floats would."""
    model = make_theirs(CASE)
    config, files = saved(model, tmp_path)
    (path,) = files.files
    tensors, stored, meant = load_file(path), {}, {}
    writer = packed(8, None, torch.float32, symmetric=True)
    for name, weight in tensors.items():
        if "_proj.weight" not in name or "visual" in name:
            stored[name] = meant[name] = weight
            continue
        parts, meant[name] = writer(weight)
        module = name.removesuffix(".weight")
        stored |= {f"{module}.{part}": each for part, each in parts.items()}
    assert len(stored) > len(tensors)
    save_file(meant, path)
    true = logits_of(opened(config, files), tmp_path)
    save_file(stored, path)
    settings = compressed("pack-quantized", num_bits=8) | {"ignore": ["lm_head", "re:.*visual.*"]}
    quantised = read_compressed_tensors(Fields(settings, "config.json"))
    named = msgspec.structs.replace(files, dtype=quantised.name, quantised=quantised)
    ours = both(CASE)[1]
    found = logits_of(Ours(config, ours.decoder, ours.tower, named), tmp_path)
    assert 0 < distance(found, true) < 0.1
