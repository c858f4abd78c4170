"""`penstock doctor MODEL`: what a model takes, before it is loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import ModelImpl
from penstock.errors import StartupError
from penstock.prepare import load_manifest, prepare
from penstock_worker.loading.tensors import cpu_bytes
from penstock_worker.machine import doctor
from penstock_worker.machine.doctor import examine_model
from testing.pooling_models import DEBERTA, load_pooling, save
from testing.tiny_models import LLAMA_CONFIG, write_hub_folder


def completed(folder: Path) -> Path:
    """Gives the folder all tensors that transformers' class has for its config.json."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kept = {path: path.read_bytes() for path in folder.glob("*.json")}
    getattr(transformers, config.architectures[0])(config).save_pretrained(folder)
    for path, content in kept.items():
        path.write_bytes(content)
    return folder


def found(folder: Path, model_impl: ModelImpl = "auto") -> dict[str, Any]:
    return {finding.name: finding for finding in examine_model(str(folder), model_impl)}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_plain_model(tmp_path: Path) -> None:
    findings = found(completed(write_hub_folder(tmp_path / "plain")))
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
    config["model_type"] = "stablelm"
    findings = found(completed(write_hub_folder(tmp_path / "stable", config=config)))
    assert findings["needs"].text == "heads that rotate in part, layer norms"
    assert findings["triton"].level == "note"
    assert findings["reference"].level == "ok"


def test_states_and_their_copies_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 256 sequences: a layer of two tokens of each channel, a copy, and the latest
    results."""
    unknown = ("rms_norm_eps", "hidden_act")
    config = LLAMA_CONFIG | {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2"}
    config = {key: value for key, value in config.items() if key not in unknown}
    config |= {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}
    config |= {"conv_L_cache": 3, "norm_eps": 1e-5, "block_auto_adjust_ff_dim": False}
    folder = completed(write_hub_folder(tmp_path / "lfm2", config=config))
    about = found(folder)
    assert "GiB for 256 of them and copies" in about["memory"].text
    width = LLAMA_CONFIG["hidden_size"]
    taken = 4 * 256 * width * (2 + 2 + 1)
    size = cpu_bytes(load_manifest(prepare(str(folder)))) or 0
    assert size > sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    for free, level in ((size + taken, "missing"), (size + taken + 1, "ok")):
        monkeypatch.setattr(doctor, "free_memory", lambda free=free: free)
        assert found(folder)["memory"].level == level


def test_a_model_that_is_not_served(tmp_path: Path) -> None:
    config = LLAMA_CONFIG | {"architectures": ["FalconForCausalLM"]}
    [finding] = examine_model(str(write_hub_folder(tmp_path / "falcon", config=config)))
    assert not finding.ok
    assert "FalconForCausalLM is not served" in finding.text


def test_a_model_that_no_family_describes(tmp_path: Path) -> None:
    config = LLAMA_CONFIG | {"architectures": ["PersimmonForCausalLM"], "model_type": "persimmon"}
    findings = found(write_hub_folder(tmp_path / "persimmon", config=config))
    assert findings["implementation"].level == "note"
    assert "transformers' code" in findings["implementation"].text
    assert findings["transformers"].text == "has PersimmonForCausalLM"
    assert "reference" not in findings


def test_whose_code_is_asked_for(tmp_path: Path) -> None:
    llama = write_hub_folder(tmp_path / "llama", config=LLAMA_CONFIG | {"model_type": "llama"})
    theirs = found(llama, "transformers")
    assert "although a family describes" in theirs["implementation"].text
    assert theirs["transformers"].text == "has LlamaForCausalLM"
    assert found(llama, "penstock")["implementation"].text == "Penstock's family llama"
    config = LLAMA_CONFIG | {"architectures": ["PersimmonForCausalLM"], "model_type": "persimmon"}
    refused = found(write_hub_folder(tmp_path / "persimmon", config=config), "penstock")
    assert "PersimmonForCausalLM is not served" in refused["model"].text


def test_a_model_that_transformers_does_not_know(tmp_path: Path) -> None:
    config = LLAMA_CONFIG | {"architectures": ["Llama9ForCausalLM"], "model_type": "llama9"}
    findings = found(write_hub_folder(tmp_path / "new", config=config))
    assert not findings["transformers"].ok
    assert "has no decoder for model_type 'llama9'" in findings["transformers"].text


ENCODERS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "MPNet": ("MPNetModel", {}, None),
    "Nomic": ("NomicBertModel", {}, None),
    "DeBERTa": ("DebertaV2Model", DEBERTA, None),
    "a convolution": ("DebertaV2Model", {**DEBERTA, "conv_kernel_size": 3}, "a convolution of"),
    "ReLU": ("BertModel", {"hidden_act": "relu"}, "relu"),
    "small heads": ("BertModel", {"num_attention_heads": 6}, "head_dim is 8, not a multiple of 16"),
}
"""What the CPU's kernels lack for one; None: nothing."""


@pytest.mark.parametrize("case", ENCODERS)
def test_which_backends_an_encoder_has(tmp_path: Path, case: str) -> None:
    """What is said is what computes."""
    kind, settings, lacking = ENCODERS[case]
    save(tmp_path / "m", kind, **({"hidden_size": 48, "num_attention_heads": 3} | settings))
    findings = found(tmp_path / "m")
    assert "layer norms" in findings["needs"].text
    assert findings["reference"].text == "has all that the model needs"
    on_cpu = findings["cpu"]
    worker = {"attention_backend": "cpu"}
    if lacking is None:
        assert on_cpu.text == "has all that the model needs"
        load_pooling(str(tmp_path / "m"), tmp_path, worker=worker).runner.close()
        return
    assert on_cpu.text.startswith("can't run it: ")
    assert lacking in on_cpu.text
    assert on_cpu.level == "note"
    said = re.escape(on_cpu.text.removeprefix("can't run it: "))
    with pytest.raises(StartupError, match=said):
        load_pooling(str(tmp_path / "m"), tmp_path, worker=worker)
