"""BGE-M3's three outputs against a plain computation over transformers' hidden states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import UnsupportedModel
from penstock.prepare import prepare
from penstock.protocol.common import Pooling
from testing.pooling_models import (
    facts_of,
    load_pooling,
    random_inputs,
    run,
    run_vectors,
    save,
    sentence_files,
)
from tests.worker.pooling.late_models import SIZES, SPECIAL, late_tokenizer

Layers = dict[str, dict[str, torch.Tensor]]


def _save(folder: Path) -> tuple[Any, Layers]:
    sizes = {**SIZES, "max_position_embeddings": 81, "type_vocab_size": 1, "pad_token_id": 0}
    model = save(folder, "XLMRobertaModel", **sizes)
    sentence_files(folder, "cls_token", normalize=True)
    late_tokenizer(folder)
    names = ("pad_token", "cls_token", "eos_token", "unk_token")
    special = dict(zip(names, SPECIAL, strict=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    layers = {
        name: {"weight": 0.3 * torch.randn(outputs, 48), "bias": torch.full((outputs,), 3.0)}
        for name, outputs in (("sparse_linear", 1), ("colbert_linear", 48))
    }
    return model, layers


def _beside(folder: Path, layers: Layers) -> None:
    for name, tensors in layers.items():
        save_file(tensors, folder / f"{name}.safetensors")


def _inside(folder: Path, layers: Layers) -> None:
    file = folder / "model.safetensors"
    further = {f"{name}.{part}": each for name, own in layers.items() for part, each in own.items()}
    save_file({**load_file(file), **further}, file)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("written", [_beside, _inside])
def test_three_outputs_of_one_model(tmp_path: Path, written: Any, backend: str) -> None:
    model, layers = _save(tmp_path / "m")
    written(tmp_path / "m", layers)
    loaded = load_pooling(str(tmp_path / "m"), tmp_path, worker={"attention_backend": backend})
    # Special tokens, which have no weight, and a token that is there twice.
    inputs = [[1, 50, 51, 50, 3, 2], *random_inputs([40, 7])]
    whole = run(loaded, inputs, Pooling("embed"))
    rows = run(loaded, inputs, Pooling("token_embed"))
    weights = run_vectors(loaded, inputs, Pooling("embed_sparse"))
    assert any(each.indexes() for each in weights)
    for place, tokens in enumerate(inputs):
        with torch.inference_mode():
            hidden = model(torch.tensor([tokens])).last_hidden_state[0]
        wanted = torch.nn.functional.normalize(hidden[0], dim=0)
        assert np.abs(whole[place] - wanted.numpy()).max() < 1e-5
        own = layers["colbert_linear"]
        vectors = torch.nn.functional.normalize(hidden @ own["weight"].T + own["bias"], dim=1)
        assert np.abs(rows[place] - vectors.numpy()).max() < 5e-5
        own = layers["sparse_linear"]
        each = torch.relu(hidden @ own["weight"][0] + own["bias"]).tolist()
        best: dict[int, float] = {}
        for token, weight in zip(tokens, each, strict=True):
            if token > 3 and weight > 0:
                best[token] = max(weight, best.get(token, 0.0))
        assert weights[place].indexes() == sorted(best)
        found = np.frombuffer(weights[place].data, dtype="<f4")
        assert np.allclose(found, [best[token] for token in sorted(best)], rtol=0, atol=5e-5)
    for place, tokens in enumerate(inputs):
        (alone,) = run_vectors(loaded, [tokens], Pooling("embed_sparse"))
        assert alone == weights[place]
        (vectors_alone,) = run(loaded, [tokens], Pooling("token_embed"))
        assert np.array_equal(vectors_alone, rows[place])
    loaded.runner.close()


def test_pickled_layers_are_left_out(tmp_path: Path) -> None:
    _save(tmp_path / "m")
    for name in ("sparse_linear", "colbert_linear"):
        (tmp_path / "m" / f"{name}.pt").write_bytes(b"never read")
    welcome = facts_of(str(tmp_path / "m"), tmp_path).welcome(1, 100)
    assert welcome.pooling_tasks == ("embed", "token_embed")
    assert welcome.pooling is not None
    assert welcome.pooling.late is None


def test_the_model_is_told_to_front_ends(tmp_path: Path) -> None:
    _, layers = _save(tmp_path / "m")
    _beside(tmp_path / "m", layers)
    welcome = facts_of(str(tmp_path / "m"), tmp_path).welcome(1, 100)
    assert welcome.pooling_tasks == ("embed", "token_embed", "embed_sparse")
    assert welcome.pooling is not None
    assert welcome.pooling.sparse is not None
    assert welcome.pooling.sparse.skipped == (0, 1, 2, 3)


WRONG: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "two weights": ({"weight": (2, 48)}, "a token has one weight, not 2"),
    "size": ({"weight": (1, 47)}, r"sparse_linear of shape \(1, 47\) takes no vectors of 48"),
    "name": ({"other": (1, 48)}, "holds no tensor named weight or sparse_linear.weight"),
}


@pytest.mark.parametrize("case", WRONG)
def test_layers_that_do_not_fit_are_refused_by_name(tmp_path: Path, case: str) -> None:
    shapes, said = WRONG[case]
    _save(tmp_path / "m")
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    _beside(tmp_path / "m", {"sparse_linear": tensors})
    with pytest.raises(UnsupportedModel, match=said):
        prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))
