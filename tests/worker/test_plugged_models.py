"""The documentation's examples of a family and of a backend, installed as packages of their own."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.config.plugins import FAMILIES
from penstock.errors import StartupError, UnsupportedModel
from penstock.families import finding
from penstock.prepare import prepare
from penstock.prepare.folder import load_manifest
from testing.examples import install, write_package
from testing.tiny_models import byte_level_tokenizer
from tests.said import said
from tests.worker.cpu_model import CPUModel
from tests.worker.models.parity import compare

THEIR_NAMES = {"q": "query", "k": "key", "v": "value", "o": "output"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(finding, "_families", finding._families.__wrapped__)
    return folder


def theirs() -> Any:
    import transformers

    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=600,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=256,
        )
    ).eval()


def example_folder(model: Any, folder: Path) -> Path:
    """A checkpoint of the example's class, whose attention has names of its own."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["ExampleLlamaForCausalLM"]
    config["model_type"] = "example_llama"
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    for short, name in THEIR_NAMES.items():
        old, new = f"self_attn.{short}_proj", f"attention.{name}"
        tensors = {key.replace(old, new): value for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "tokenizer.json").write_text(byte_level_tokenizer().to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder


def prompts() -> list[list[int]]:
    return [[(7 * at + n) % 600 for at in range(n)] for n in (1, 15, 16, 40)]


def test_a_family_and_a_backend_are_served_as_ours(
    site: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = theirs()
    folder = example_folder(model, tmp_path / "model")
    with pytest.raises(UnsupportedModel, match="ExampleLlamaForCausalLM"):
        prepare(str(folder), cache_dir=tmp_path / "cache", model_impl="penstock")
    install("family", site)
    install("backend", site)
    _look_again()
    prepared = load_manifest(
        prepare(str(folder), cache_dir=tmp_path / "cache", model_impl="penstock")
    )
    assert prepared.family == "example_llama"
    for backend in ("cpu", "reference", "watched"):
        ours = CPUModel(prepared.decoder, prepared.weights, "float32", backend=backend)
        assert compare(ours, model, prompts(), 8) > 16
        known = ours.recipe().fingerprint.startswith("example-backend 1.0 ")
        assert known == (backend == "watched")
    assert "the largest logit so far" in said(caplog)


def test_another_version_of_a_family_is_another_model(site: Path, tmp_path: Path) -> None:
    folder = example_folder(theirs(), tmp_path / "model")
    install("family", site)
    digests = []
    for version in ("1.0", "1.1"):
        (info,) = site.glob("*.dist-info")
        text = (info / "METADATA").read_text()
        (info / "METADATA").write_text(text.replace("Version: 1.0", f"Version: {version}"))
        _look_again()
        made = prepare(str(folder), cache_dir=tmp_path / "cache")
        digests.append((made, load_manifest(made).digest))
    assert digests[0][0] != digests[1][0]
    assert digests[0][1] != digests[1][1]


def test_a_family_that_would_replace_ours_is_left_out(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (site / "pst_family.py").write_text(
        "from dataclasses import replace\n"
        "from penstock.families.served import FAMILIES\n"
        "SAME = FAMILIES['llama']\n"
        "CLASS = replace(SAME, name='pst_llama')\n"
        "NONE = 'llama'\n"
    )
    points = {name.lower(): f"pst_family:{name}" for name in ("SAME", "CLASS", "NONE", "MISSING")}
    write_package(site, "pst-family", "1.0", {FAMILIES: points})
    _look_again()
    assert finding.family_named("pst_llama") is None
    found = said(caplog)
    for words in (
        "the family llama already exists",
        "LlamaForCausalLM already has a family",
        "and not a Family",
        "the plug-in missing of pst-family 1.0 can't be loaded",
    ):
        assert words in found


def test_a_backend_that_is_not_there(site: Path, tmp_path: Path) -> None:
    install("backend", site)
    ours = finding.served_family("llama")
    assert ours.name == "llama"
    folder = theirs()
    folder.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text(byte_level_tokenizer().to_str())
    made = load_manifest(prepare(str(tmp_path / "model"), cache_dir=tmp_path / "cache"))
    model = CPUModel(made.decoder, made.weights, "float32", backend="wached")
    with pytest.raises(StartupError, match=r"wached; allowed: auto, .*, watched"):
        model.recipe()


def _look_again() -> None:
    from penstock.config import plugins

    plugins._installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("example_")]:
        del sys.modules[name]
