"""Tiny random checkpoints of each family on the CPU kernels, against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import StartupError
from penstock.formats.fields import Fields
from penstock.formats.weight_files import find_safetensors
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.hub_config import read_config
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES
from tests.worker.models.parity import compare
from tests.worker.models.test_parity_families import make_theirs, random_prompts

pytestmark = pytest.mark.slow


REFUSED = dict.fromkeys(
    (
        "llama-9-3",
        "llama-5-1-wide-heads-biases",
        "llama-6-2-linear-rope",
        "qwen2-9-3",
        "qwen2-1-1-tied",
        "qwen3-7-7-tied-biases",
    ),
    "not a multiple of 16",
) | {
    "deepseek-v3": "a latent has 40 numbers, not a multiple of 16",
}
"""Cases that the kernels can't run, and what they say."""


def cpu_model(folder: Path) -> CPUModel:
    """A folder that transformers saved."""
    path = folder / "config.json"
    files = tuple(str(file) for file in find_safetensors(folder))
    return CPUModel(
        read_config(Fields(json.loads(path.read_text()), str(path))),
        WeightFiles(format="safetensors", files=files, dtype="float32"),
        "float32",
        positions=SIZES["max_position_embeddings"],
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES)
def test_the_cpu_kernels_equal_transformers(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*CASES[case])
    theirs.save_pretrained(tmp_path)
    model = cpu_model(tmp_path)
    if case in REFUSED:
        with pytest.raises(StartupError, match=REFUSED[case]):
            model.recipe()
        return
    prompts = random_prompts()[::3]
    assert compare(model, theirs, prompts, 24) >= len(prompts) * 4
