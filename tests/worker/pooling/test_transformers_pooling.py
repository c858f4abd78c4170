"""Vectors and classes of decoders that no family describes, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import StartupError
from penstock.protocol.common import Pooling
from testing.pooling_models import load_pooling, random_inputs, run, save

SIZES: dict[str, Any] = {
    "pad_token_id": 0,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
LENGTHS = [1, 2, 31, 7, 64]


def test_embeddings_equal_transformers_in_any_chunks(tmp_path: Path) -> None:
    model = save(tmp_path / "m", "PersimmonModel", **SIZES)
    loaded = load_pooling(str(tmp_path / "m"), tmp_path, threads=2)
    inputs = random_inputs(LENGTHS)
    found = run(loaded, inputs, Pooling("embed", normalize=False))
    for tokens, vector in zip(inputs, found, strict=True):
        with torch.inference_mode():
            true = model(torch.tensor([tokens])).last_hidden_state[0, -1].numpy()
        assert np.abs(vector - true).max() < 2e-4 * np.abs(true).max()
    chunked = run(loaded, inputs, Pooling("embed", normalize=False), chunk=5)
    for whole, parts in zip(found, chunked, strict=True):
        assert np.array_equal(whole, parts)
    loaded.runner.close()


def test_classes_equal_transformers(tmp_path: Path) -> None:
    model = save(tmp_path / "m", "PersimmonForSequenceClassification", num_labels=3, **SIZES)
    loaded = load_pooling(str(tmp_path / "m"), tmp_path)
    inputs = random_inputs(LENGTHS)
    found = run(loaded, inputs, Pooling("classify", activate=False))
    for tokens, scores in zip(inputs, found, strict=True):
        with torch.inference_mode():
            true = model(torch.tensor([[token or 3 for token in tokens]])).logits[0].numpy()
        if 0 not in tokens:
            assert np.abs(scores - true).max() < 2e-4 * np.abs(true).max()
    loaded.runner.close()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_other_backends_say_what_they_lack(backend: str, tmp_path: Path) -> None:
    save(tmp_path / "m", "PersimmonModel", **SIZES)
    with pytest.raises(StartupError, match="layers that only transformers' code describes"):
        load_pooling(str(tmp_path / "m"), tmp_path, worker={"attention_backend": backend})
