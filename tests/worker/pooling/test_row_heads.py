"""What is made of rows, against transformers: SPLADE's weights of words, classes of tokens, and
their bits in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import UnsupportedModel
from penstock.model.pooling_config import PoolingConfig
from penstock.prepare import prepare
from penstock.protocol.common import Pooling, Vectors
from penstock_worker.pooling.row_heads import as_sparse
from testing.pooling_models import (
    DEBERTA,
    VOCAB,
    facts_of,
    load_pooling,
    random_inputs,
    run_vectors,
    save,
    splade_files,
)
from tests.worker.pooling.late_models import MODERN, SIZES

BACKENDS = ("cpu", "reference")
LENGTHS = [1, 31, 7, 64, 33]
SPLADE = Pooling("embed_sparse")
LONGER = {"max_position_embeddings": 82}
MASKED: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": {},
    "RobertaForMaskedLM": {**LONGER, "type_vocab_size": 1},
    "DistilBertForMaskedLM": {},
    "ModernBertForMaskedLM": MODERN,
    "MPNetForMaskedLM": LONGER,
    "ElectraForMaskedLM": {"embedding_size": 32},
    "AlbertForMaskedLM": {"embedding_size": 32},
    "DebertaV2ForMaskedLM": DEBERTA,
}
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "BertForTokenClassification": {},
    "RobertaForTokenClassification": {**LONGER, "type_vocab_size": 1},
    "DistilBertForTokenClassification": {},
    "ModernBertForTokenClassification": {**MODERN, "classifier_bias": True},
    "ElectraForTokenClassification": {"embedding_size": 32},
    "AlbertForTokenClassification": {"embedding_size": 32},
    "DebertaV2ForTokenClassification": DEBERTA,
}


def _sizes(kind: str) -> dict[str, Any]:
    if kind.startswith("DistilBert"):
        return {"dim": 48, "hidden_dim": 72, "n_heads": 3}
    return SIZES


def _save(folder: Path, kind: str, settings: dict[str, Any]) -> Any:
    model = save(folder, kind, **_sizes(kind), **settings)
    if not kind.startswith("Deberta"):  # It has one way.
        model.set_attn_implementation("eager")
    return model


def _loaded(folder: Path, cache: Path, backend: str, **settings: Any) -> Any:
    return load_pooling(str(folder), cache, worker={"attention_backend": backend}, **settings)


def _whole(vectors: Vectors) -> np.ndarray:
    found = np.zeros(VOCAB, dtype=np.float32)
    found[vectors.indexes()] = np.frombuffer(vectors.data, dtype="<f4")
    return found


def _logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("kind", MASKED)
def test_weights_of_words_equal_transformers(tmp_path: Path, kind: str) -> None:
    model = _save(tmp_path / "m", kind, MASKED[kind])
    splade_files(tmp_path / "m")
    loaded = _loaded(tmp_path / "m", tmp_path, "auto")
    inputs = random_inputs(LENGTHS)
    for tokens, found in zip(inputs, run_vectors(loaded, inputs, SPLADE), strict=True):
        wanted = torch.log1p(torch.relu(_logits(model, tokens))).amax(0).numpy()
        assert np.abs(_whole(found) - wanted).max() < 5e-5
        assert all(0 <= place < VOCAB for place in found.indexes())
        assert len(found.indexes()) == np.count_nonzero(_whole(found))
    loaded.runner.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_are_summed_where_the_files_say_so(tmp_path: Path, backend: str) -> None:
    model = _save(tmp_path / "m", "BertForMaskedLM", {})
    splade_files(tmp_path / "m", pooling_strategy="sum", activation_function="log1p_relu")
    loaded = _loaded(tmp_path / "m", tmp_path, backend)
    inputs = random_inputs(LENGTHS)
    for tokens, found in zip(inputs, run_vectors(loaded, inputs, SPLADE), strict=True):
        wanted = torch.log1p(torch.log1p(torch.relu(_logits(model, tokens)))).sum(0).numpy()
        assert np.abs(_whole(found) - wanted).max() < 1e-4
    loaded.runner.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classes_of_tokens_equal_transformers(tmp_path: Path, kind: str, backend: str) -> None:
    model = _save(tmp_path / "m", kind, {**CLASSIFIERS[kind], "num_labels": 5})
    loaded = _loaded(tmp_path / "m", tmp_path, backend)
    inputs = random_inputs(LENGTHS)
    asked = [Pooling("token_classify", activate=None if n % 2 else False) for n in range(5)]
    found = run_vectors(loaded, inputs, *asked)
    for tokens, pooling, vectors in zip(inputs, asked, found, strict=True):
        assert vectors.shape == (len(tokens), 5)
        logits = _logits(model, tokens)
        wanted = logits if pooling.activate is False else logits.softmax(1)
        numbers = np.frombuffer(vectors.data, dtype="<f4").reshape(vectors.shape)
        assert np.abs(numbers - wanted.numpy()).max() < 1e-4
    loaded.runner.close()


@pytest.mark.parametrize("task", ["embed_sparse", "token_classify"])
def test_bits_of_heads_per_row_are_an_inputs_own(tmp_path: Path, task: Any) -> None:
    if task == "embed_sparse":
        _save(tmp_path / "m", "BertForMaskedLM", {})
        splade_files(tmp_path / "m")
    else:
        _save(tmp_path / "m", "BertForTokenClassification", {"num_labels": 9})
    loaded = _loaded(tmp_path / "m", tmp_path, "cpu", threads=2)
    inputs = random_inputs([*range(1, 40, 5), 80, 65, 79])
    asked = Pooling(task)
    crowd = run_vectors(loaded, inputs, asked)
    backwards = run_vectors(loaded, inputs[::-1], asked)[::-1]
    for tokens, one, other in zip(inputs, crowd, backwards, strict=True):
        (alone,) = run_vectors(loaded, [tokens], asked)
        assert alone == one == other
    loaded.runner.close()


def test_nothing_is_a_sparse_vector_too() -> None:
    found = as_sparse(torch.zeros(7))
    assert found == Vectors((0,), b"", b"")
    assert found.is_sound()
    with pytest.raises(ValueError, match="not finite"):
        as_sparse(torch.tensor([0.0, float("nan")]))


def test_front_ends_hear_what_the_model_does(tmp_path: Path) -> None:
    _save(tmp_path / "w", "BertForMaskedLM", {})
    splade_files(tmp_path / "w")
    _save(tmp_path / "t", "BertForTokenClassification", {"id2label": {0: "O", 1: "B-PER"}})
    words, tokens = (facts_of(str(tmp_path / name), tmp_path).welcome(1, 100) for name in "wt")
    assert words.pooling_tasks == ("embed_sparse",)
    assert tokens.pooling_tasks == ("token_classify", "token_embed")
    assert isinstance(tokens.pooling, PoolingConfig)
    assert tokens.pooling.labels == ("O", "B-PER")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "strategy": ({"pooling_strategy": "mean"}, "pooling_strategy .*max or sum"),
    "activation": ({"activation_function": "tanh"}, "activation_function .*relu or log1p_relu"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_computed_is_refused_by_name(tmp_path: Path, case: str) -> None:
    settings, said = WRONG[case]
    _save(tmp_path / "m", "BertForMaskedLM", {})
    splade_files(tmp_path / "m", **settings)
    with pytest.raises(UnsupportedModel, match=said):
        prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))
