"""Families that transformers has no class of, against one of its classes that computes the same."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.gguf_config import read_config as read_gguf
from penstock.prepare.hub_config import read_config
from penstock_worker.forward.cpu import backend as cpu
from tests.worker.checkpoints import hub_model, load_model
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import config_class
from tests.worker.models.gguf_writing import write
from tests.worker.models.parity import compare
from tests.worker.models.test_family_bits import (
    NO_FILES,
    POSITIONS,
    alone,
    forward,
    in_chunks_and_company,
    made,
)
from tests.worker.models.test_parity_families import make_theirs, random_prompts
from tests.worker.models.test_parity_on_cpu import cpu_model
from tests.worker.models.twins import TWINS, Twin
from tests.worker.random_weights import RandomWeights

pytestmark = pytest.mark.timeout(240)


def made_theirs(twin: Twin) -> Any:
    theirs = make_theirs(twin.computed_by, twin.settings)
    with torch.no_grad():
        twin.begins(theirs)
    return theirs


def config_json(twin: Twin, config: Any) -> dict[str, Any]:
    """What the family's config.json says."""
    own = {"architectures": [twin.architecture], "model_type": "of its makers"}
    said: dict[str, Any] = config.to_dict() | own | twin.says(config)
    return said


def save(twin: Twin, theirs: Any, folder: Path) -> None:
    theirs.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = twin.files(load_file(path), theirs.config)
    save_file({name: each.contiguous() for name, each in tensors.items()}, path)
    (folder / "config.json").write_text(json.dumps(config_json(twin, theirs.config)))


@pytest.mark.parametrize("case", TWINS)
def test_equals_its_twin(case: str, tmp_path: Path) -> None:
    twin = TWINS[case]
    theirs = made_theirs(twin)
    save(twin, theirs, tmp_path)
    prompts = random_prompts()[::3]
    model = hub_model(tmp_path, torch.float32, SIZES["max_position_embeddings"])
    assert compare(model, theirs, prompts, 24) >= len(prompts) * 4
    assert compare(cpu_model(tmp_path), theirs, prompts, 24) >= len(prompts) * 4


@pytest.mark.parametrize("case", [name for name, twin in TWINS.items() if twin.gguf])
def test_equals_its_twin_from_gguf(case: str, tmp_path: Path) -> None:
    twin, path = TWINS[case], tmp_path / "model.gguf"
    theirs = made_theirs(twin)
    assert twin.gguf is not None
    converted = twin.gguf_files(theirs.state_dict(), theirs.config)
    write(path, SimpleNamespace(config=theirs.config, state_dict=lambda: converted), twin.gguf)
    config = read_gguf(GGUFFile(path))
    files = WeightFiles(format="gguf", files=(str(path),), dtype="F32")
    positions = SIZES["max_position_embeddings"]
    prompts = [prompt for prompt in random_prompts() if len(prompt) < 100][::2]
    model = load_model(config, files, torch.float32, positions)
    assert compare(model, theirs, prompts, 8) >= len(prompts)
    on_cpu = CPUModel(config, files, "float32", positions=positions)
    assert compare(on_cpu, theirs, prompts, 8) >= len(prompts)


def read(case: str) -> ModelConfig:
    twin = TWINS[case]
    theirs = config_class(twin.computed_by)(**(SIZES | twin.settings))
    return read_config(Fields(config_json(twin, theirs), case))


@pytest.mark.parametrize("case", TWINS)
def test_rows_of_twins_depend_on_their_sequence_alone(case: str) -> None:
    with torch.inference_mode():
        one, other = (
            alone(forward(read(case), torch.bfloat16)),
            in_chunks_and_company(forward(read(case), torch.bfloat16)),
        )
    assert one.std() > 0
    assert torch.equal(one, other)


@pytest.mark.parametrize("case", TWINS)
def test_on_the_cpu_kernels(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "open_weights", lambda *ignored, **also: RandomWeights())
    model = CPUModel(read(case), NO_FILES, "bfloat16", positions=POSITIONS)
    groups = model.groups
    one, other = (
        alone(made(model, threads=1), groups),
        in_chunks_and_company(made(model, threads=2), groups),
    )
    assert one.std() > 0
    assert torch.equal(one, other)
