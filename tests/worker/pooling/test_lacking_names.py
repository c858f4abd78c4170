"""A tensor that an encoder's files lack is called as they call it: as they did before it was taken
away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import UnsupportedModel
from penstock.model.config import EncoderConfig
from penstock.prepare import load_manifest, prepare
from penstock_worker.loading.tensors import check_tensors
from penstock_worker.pooling.encoder.lacking_names import encoder_file_name
from penstock_worker.pooling.encoders import open_encoder
from penstock_worker.weights.stored import StoredTensor
from testing.pooling_models import save
from tests.worker.checkpoints import tiny_setup
from tests.worker.pooling.space_models import write_clip, write_siglip
from tests.worker.pooling.test_cpu_pooling import CLASSIFIERS, ENCODERS, KERNEL_SIZES, SIZES
from tests.worker.pooling.test_gguf_encoders import HIDDEN, write_encoder


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _opened(path: Path) -> tuple[EncoderConfig, dict[str, StoredTensor], str]:
    prepared = load_manifest(prepare(str(path)))
    assert isinstance(prepared.config, EncoderConfig)
    setup = msgspec.structs.replace(tiny_setup(path.parent), pooling=prepared.pooling)
    weights, _ = open_encoder(prepared, prepared.config, setup, torch.float32)
    return prepared.config, dict(weights.tensors), prepared.weights.format


def _check_each(path: Path) -> None:
    config, tensors, format = _opened(path)
    for gone in {each.name for each in tensors.values()}:
        left = {ours: each for ours, each in tensors.items() if each.name != gone}
        for ours in tensors.keys() - left.keys():
            assert encoder_file_name(ours, left, config, format) == gone


def _save(folder: Path, kind: str, **settings: Any) -> None:
    family = kind.removesuffix("ForSequenceClassification").removesuffix("Model")
    save(folder, kind, **{**SIZES.get(family, KERNEL_SIZES), **settings})


@pytest.mark.parametrize("kind", [*ENCODERS, *CLASSIFIERS])
def test_of_several_layers(tmp_path: Path, kind: str) -> None:
    settings = ENCODERS.get(kind) or {**CLASSIFIERS.get(kind, {}), "num_labels": 3}
    _save(tmp_path / "m", kind, **settings)
    _check_each(tmp_path / "m")


@pytest.mark.parametrize(
    "kind", ["BertModel", "DistilBertModel", "AlbertModel", "NomicBertModel", "ModernBertModel"]
)
def test_of_one_layer(tmp_path: Path, kind: str) -> None:
    """No other layer's name says it."""
    settings = {each: value for each, value in ENCODERS[kind].items() if "groups" not in each}
    _save(tmp_path / "m", kind, **{**settings, "num_hidden_layers": 1, "n_layers": 1})
    _check_each(tmp_path / "m")


@pytest.mark.parametrize("write", [write_clip, write_siglip])
def test_of_texts_that_share_a_space_with_pictures(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "m")
    _check_each(tmp_path / "m")


def test_of_a_gguf_file(tmp_path: Path) -> None:
    model = save(tmp_path / "m", "BertModel", **HIDDEN)
    _check_each(write_encoder(tmp_path / "m.gguf", model))


@pytest.mark.parametrize(
    "gone",
    ["encoder.layer.1.attention.self.query.bias", "embeddings.word_embeddings.weight"],
)
def test_who_loads_says_so(tmp_path: Path, gone: str) -> None:
    _save(tmp_path / "m", "BertModel")
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    del tensors[gone]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(UnsupportedModel, match=f"lacks the tensor {gone} of shape"):
        check_tensors(load_manifest(prepare(str(tmp_path / "m"))))
