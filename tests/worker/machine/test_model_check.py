"""`penstock doctor MODEL`: what a model takes, before it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock_worker.machine.model_check import examine_model
from tests.shared.tiny_models import LLAMA_CONFIG, write_hub_folder


def found(folder: Path) -> dict[str, Any]:
    return {finding.name: finding for finding in examine_model(str(folder))}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_plain_model(tmp_path: Path) -> None:
    findings = found(write_hub_folder(tmp_path / "plain"))
    assert all(finding.ok for finding in findings.values())
    assert findings["needs"].text == "nothing beyond Llama's layers"
    assert findings["reference"].text == "has all that the model needs"
    heads, layers, dim = 1, 1, 8
    per_token = 2 * layers * heads * dim * 4 / 1024
    assert f"keys and values {per_token:.0f} KiB a token" in findings["memory"].text


def test_what_a_backend_lacks_is_named(tmp_path: Path) -> None:
    config = LLAMA_CONFIG | {"architectures": ["StableLmForCausalLM"], "layer_norm_eps": 1e-5}
    config = {key: value for key, value in config.items() if key != "rms_norm_eps"}
    config |= {"partial_rotary_factor": 0.5}
    findings = found(write_hub_folder(tmp_path / "stable", config=config))
    assert findings["needs"].text == "heads that rotate in part, layer norms"
    assert findings["triton"].level == "note"
    assert findings["reference"].level == "ok"


def test_a_model_that_is_not_served(tmp_path: Path) -> None:
    config = LLAMA_CONFIG | {"architectures": ["FalconForCausalLM"]}
    [finding] = examine_model(str(write_hub_folder(tmp_path / "falcon", config=config)))
    assert not finding.ok
    assert "FalconForCausalLM is not served" in finding.text


def test_a_model_that_no_family_describes(tmp_path: Path) -> None:
    config = LLAMA_CONFIG | {"architectures": ["HeliumForCausalLM"], "model_type": "helium"}
    findings = found(write_hub_folder(tmp_path / "helium", config=config))
    assert findings["implementation"].level == "note"
    assert "transformers' code" in findings["implementation"].text
    assert findings["transformers"].text == "has HeliumForCausalLM"
    assert "reference" not in findings


def test_a_model_that_transformers_does_not_know(tmp_path: Path) -> None:
    config = LLAMA_CONFIG | {"architectures": ["Llama9ForCausalLM"], "model_type": "llama9"}
    findings = found(write_hub_folder(tmp_path / "new", config=config))
    assert not findings["transformers"].ok
    assert "has no decoder for model_type 'llama9'" in findings["transformers"].text
