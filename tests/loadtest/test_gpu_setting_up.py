"""What the GPU measurements set up: wheels, model folders, a part's process, the worker's steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loadtest.gpu import wheels
from loadtest.gpu.cost import ModelCost
from loadtest.gpu.model_folder import hub_config, write_model
from loadtest.gpu.shapes import MODELS
from penstock.prepare import load_manifest, prepare

ROOT = Path(__file__).resolve().parents[2]


def test_every_dependency_is_downloaded_or_there() -> None:
    names = {wheels.name_of(line) for line in wheels.requirements()}
    present = set(map(wheels.canonical, wheels.PRESENT))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"] + project["optional-dependencies"]["worker"]:
        assert wheels.name_of(line) in names | present
    assert not names & present
    assert {"pyzmq", "msgspec", "llguidance", "fastapi", "pydantic-core"} <= names
    # Without it soundfile can't be imported, and with a soundfile of that kind transformers can't.
    assert {"soundfile", "cffi", "pycparser"} <= names


def test_only_what_is_missing_or_too_old_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"msgspec": "0.1.0", "pyzmq": "27.3.0", "torch": "1.0"}

    def version(name: str) -> str:
        if name in here:
            return here[name]
        raise wheels.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(wheels.importlib.metadata, "version", version)
    files = [
        Path("msgspec-0.22.0-cp312-cp312-manylinux1_x86_64.whl"),
        Path("pyzmq-27.3.1-cp312-abi3-manylinux_2_26_x86_64.whl"),
        Path("annotated_doc-0.0.6-py3-none-any.whl"),
        Path("torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
    ]
    assert wheels.missing(files) == ["annotated-doc==0.0.6", "msgspec==0.22.0"]


@pytest.mark.parametrize("name", MODELS)
def test_a_models_folder_is_prepared_to_its_shape(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / name, MODELS[name])
    prepared = load_manifest(prepare(str(folder), cache_dir=tmp_path / "cache"))
    assert prepared.config == MODELS[name]
    assert prepared.weights.dtype == "bfloat16"
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == MODELS[name].vocab_size


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3"])
def test_transformers_reads_the_same_shape(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config, cost = MODELS[name], ModelCost(MODELS[name])
    read = transformers.AutoConfig.from_pretrained(write_model(tmp_path / name, config))
    assert hub_config(config)["head_dim"] == read.head_dim
    model = transformers.AutoModelForCausalLM.from_config(read)
    matrices = [each.numel() for each in model.parameters() if each.dim() == 2]
    embedding = 0 if config.tie_word_embeddings else cost.head_parameters
    assert sum(matrices) == cost.weight_bytes // 2 + embedding


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_part_drives_a_real_runner_and_leaves_its_figures(tmp_path: Path) -> None:
    output = tmp_path / "out"
    packages = [str(ROOT / each) for each in ("shared", "services", "kernels")]
    path = os.pathsep.join([*packages, str(ROOT)])
    command = [sys.executable, "-m", "loadtest.gpu.job", "steps-0", "--dry", "--seconds", "200"]
    done = subprocess.run(
        [*command, "--output", str(output), "--work", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    found = json.loads((output / "parts" / "steps-0.json").read_text())
    assert (done.returncode, found["status"]) == (0, "done"), done.stderr
    kinds = [row["what"] for row in found["rows"] if row["mode"] == "default"]
    assert kinds == ["load", "prefill", *["decode"] * 4]  # Two batches at two contexts.
    assert not any("failed" in note for note in found["notes"])
