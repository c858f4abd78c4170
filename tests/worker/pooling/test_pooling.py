"""Pooling models against transformers, and an input's bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import PenstockError, StartupError, UnsupportedModel
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling
from penstock_worker.loading.loaded import Loaded
from testing.pooling_models import (
    cosine_distance,
    facts_of,
    load_pooling,
    random_inputs,
    run,
    save,
    sentence_files,
)

EMBED = Pooling("embed")
LENGTHS = [1, 2, 31, 7, 64, 33, 40, 16, 5]
ENCODERS: dict[str, dict[str, Any]] = {
    "BertModel": {},
    "RobertaModel": {"max_position_embeddings": 82, "type_vocab_size": 1},
    "DistilBertModel": {},
    "MPNetModel": {"max_position_embeddings": 82},
}
CLASSIFIERS = {
    "BertForSequenceClassification": {},
    "RobertaForSequenceClassification": {"max_position_embeddings": 82, "type_vocab_size": 1},
    "DistilBertForSequenceClassification": {},
    "MPNetForSequenceClassification": {"max_position_embeddings": 82},
}
DECODERS = {
    "LlamaModel": {"num_key_value_heads": 1},
    "Qwen3Model": {"num_key_value_heads": 3, "head_dim": 20},
}


def _hidden(model: Any, tokens: list[int], **more: Any) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([tokens]), **more).last_hidden_state[0].numpy()


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    loaded = load_pooling("all-minilm-l6-v2", tmp_path_factory.mktemp("cache"), threads=2)
    yield loaded
    loaded.runner.close()


@pytest.mark.parametrize("kind", ENCODERS)
def test_encoders_equal_transformers(tmp_path: Path, kind: str) -> None:
    model = save(tmp_path / "m", kind, **ENCODERS[kind])
    loaded = load_pooling(str(tmp_path / "m"), tmp_path)
    inputs = random_inputs(LENGTHS)
    found = run(loaded, inputs, Pooling("token_embed", normalize=False))
    for tokens, vectors in zip(inputs, found, strict=True):
        assert np.abs(vectors - _hidden(model, tokens)).max() < 2e-4
    loaded.runner.close()


@pytest.mark.parametrize("mode", ["mean_tokens", "max_tokens", "cls_token"])
def test_pooling_is_what_the_models_files_say(tmp_path: Path, mode: str) -> None:
    model = save(tmp_path / "m", "BertModel")
    sentence_files(tmp_path / "m", mode, normalize=mode != "max_tokens")
    loaded = load_pooling(str(tmp_path / "m"), tmp_path)
    make = {
        "mean_tokens": lambda x: x.mean(0),
        "max_tokens": lambda x: x.max(0),
        "cls_token": lambda x: x[0],
    }
    inputs = random_inputs([20, 3])
    expected = [make[mode](_hidden(model, tokens)) for tokens in inputs]
    for found, wanted in zip(run(loaded, inputs, EMBED), expected, strict=True):
        assert cosine_distance(found, wanted) < 1e-6
        length = float(np.sqrt((found**2).sum()))
        assert abs(length - (np.sqrt((wanted**2).sum()) if mode == "max_tokens" else 1)) < 1e-3
    (cut,) = run(loaded, inputs[:1], Pooling("embed", dimensions=5, normalize=True))
    assert cut.shape == (5,)
    assert abs(float((cut**2).sum()) - 1) < 1e-5
    assert cosine_distance(cut, expected[0][:5]) < 1e-6
    loaded.runner.close()


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("labels", [1, 3])
def test_classifiers_equal_transformers(tmp_path: Path, kind: str, labels: int) -> None:
    model = save(tmp_path / "m", kind, num_labels=labels, **CLASSIFIERS[kind])
    loaded = load_pooling(str(tmp_path / "m"), tmp_path)
    inputs = random_inputs(LENGTHS)
    types = bytes(3) + bytes([1]) * 28 if kind.startswith("Bert") else b""
    asked = [Pooling("classify", types if len(tokens) == 31 else b"") for tokens in inputs]
    for tokens, pooling, found in zip(inputs, asked, run(loaded, inputs, *asked), strict=True):
        more: dict[str, Any] = {}
        if pooling.token_types:
            more["token_type_ids"] = torch.tensor([list(pooling.token_types)])
        with torch.inference_mode():
            raw = model(torch.tensor([tokens]), **more).logits[0]
        expected = raw.sigmoid() if labels == 1 else raw.softmax(0)
        assert np.abs(found - expected.numpy()).max() < 1e-4
    (raw_found,) = run(loaded, inputs[:1], Pooling("classify", activate=False))
    with torch.inference_mode():
        raw = model(torch.tensor([inputs[0]])).logits[0].numpy()
    assert np.abs(raw_found - raw).max() < 2e-3
    loaded.runner.close()


@pytest.mark.parametrize("kind", DECODERS)
def test_decoders_embed_by_their_last_token(tmp_path: Path, kind: str) -> None:
    model = save(tmp_path / "m", kind, **DECODERS[kind])
    sentence_files(tmp_path / "m", "lasttoken", normalize=True)
    loaded = load_pooling(str(tmp_path / "m"), tmp_path)
    inputs = random_inputs(LENGTHS)
    whole = run(loaded, inputs, EMBED)
    for tokens, found in zip(inputs, whole, strict=True):
        assert cosine_distance(found, _hidden(model, tokens)[-1]) < 1e-5
    for found, chunked in zip(whole, run(loaded, inputs, EMBED, chunk=9), strict=True):
        assert np.array_equal(found, chunked), "chunks change bits"
    loaded.runner.close()


def test_decoder_classifier_equals_transformers(tmp_path: Path) -> None:
    kind = "LlamaForSequenceClassification"
    model = save(tmp_path / "m", kind, num_labels=4, num_key_value_heads=3, pad_token_id=0)
    loaded = load_pooling(str(tmp_path / "m"), tmp_path)
    inputs = random_inputs([9, 30])
    for tokens, found in zip(inputs, run(loaded, inputs, Pooling("classify")), strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([tokens])).logits[0].softmax(0).numpy()
        assert np.abs(found - expected).max() < 1e-4
    loaded.runner.close()


def test_minilm_equals_transformers(minilm: Loaded) -> None:
    import transformers

    (file,) = load_manifest(minilm.setup.model_dir).weights.files
    model = transformers.AutoModel.from_pretrained(str(Path(file).parent)).eval()
    inputs = random_inputs([3, 128, 256, 17, 60], vocab=30_000)
    for tokens, found in zip(inputs, run(minilm, inputs, EMBED), strict=True):
        assert cosine_distance(found, _hidden(model, tokens).mean(0)) < 1e-4
        assert abs(float((found**2).sum()) - 1) < 1e-5


def test_vectors_bits_are_an_inputs_own(minilm: Loaded) -> None:
    inputs = random_inputs([*range(1, 36, 3), 128, 100, 256, 200], vocab=30_000)
    for asked in (EMBED, Pooling("token_embed")):
        crowd = run(minilm, inputs, asked)
        backwards = run(minilm, inputs[::-1], asked)[::-1]
        for tokens, one, other in zip(inputs, crowd, backwards, strict=True):
            (alone,) = run(minilm, [tokens], asked)
            assert np.array_equal(alone, one), f"{len(tokens)} tokens in company"
            assert np.array_equal(alone, other), f"{len(tokens)} tokens in another order"


def test_odd_shapes_keep_their_bits(tmp_path: Path) -> None:
    """Sizes that no vector width divides, two threads."""
    sizes = {"hidden_size": 45, "intermediate_size": 35, "num_attention_heads": 5}
    save(tmp_path / "m", "BertModel", **sizes)
    loaded = load_pooling(str(tmp_path / "m"), tmp_path, threads=2)
    inputs = random_inputs(list(range(1, 41)))
    crowd = run(loaded, inputs, Pooling("token_embed"))
    for tokens, found in zip(inputs, crowd, strict=True):
        assert np.array_equal(run(loaded, [tokens], Pooling("token_embed"))[0], found)
    loaded.runner.close()


def test_one_bad_input_fails_alone(tmp_path: Path) -> None:
    save(tmp_path / "m", "BertModel")
    loaded = load_pooling(str(tmp_path / "m"), tmp_path)
    inputs = random_inputs([4, 4])
    with pytest.raises(AssertionError, match="a token type is 9; the model has 2"):
        run(loaded, inputs, Pooling("embed", bytes([9] * 4)), EMBED)
    loaded.runner.close()


REFUSED = {
    "no such pooling": ({"weightedmean_tokens": True}, "weightedmean_tokens is not served"),
    "two poolings": ({"cls_token": True, "mean_tokens": True}, "cls_token and pooling_mode_mean"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_pooled_is_refused_by_name(tmp_path: Path, case: str) -> None:
    flags, reason = REFUSED[case]
    save(tmp_path / "m", "BertModel")
    for flag in flags:
        sentence_files(tmp_path / "m", flag, normalize=True)
    stated = ", ".join(f'"pooling_mode_{flag}": true' for flag in flags)
    (tmp_path / "m" / "1_Pooling" / "config.json").write_text("{" + stated + "}")
    with pytest.raises(UnsupportedModel, match=reason):
        prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))


def test_settings_that_the_model_cannot_follow(tmp_path: Path) -> None:
    save(tmp_path / "m", "BertModel")
    sentence_files(tmp_path / "m", "mean_tokens", normalize=True, longest=48)
    model = str(tmp_path / "m")
    assert facts_of(model, tmp_path).max_model_len == 48
    assert facts_of(model, tmp_path, max_model_len=80).max_model_len == 80
    small = facts_of(model, tmp_path, budget=20)
    assert (small.max_model_len, small.config.scheduler.max_num_batched_tokens) == (48, 48)
    small = facts_of(model, tmp_path, max_model_len=60, budget=50)
    assert (small.max_model_len, small.setup(1).max_num_batched_tokens) == (60, 60)
    for settings, reason in (
        ({"runner": "generate"}, "is a pooling model and generates no text"),
        ({"convert": "classify"}, "has no classification head"),
        ({"max_model_len": 81}, "at most 80"),
    ):
        with pytest.raises(StartupError, match=reason):
            facts_of(model, tmp_path, **settings)
    save(tmp_path / "c", "BertForSequenceClassification", num_labels=2)
    classifier = str(tmp_path / "c")
    welcome = facts_of(classifier, tmp_path).welcome(1, 100)
    assert welcome.pooling_tasks == ("classify", "token_embed")
    assert facts_of(classifier, tmp_path, convert="embed").welcome(1, 100).pooling_tasks[0] == (
        "embed"
    )
    loaded = load_pooling(classifier, tmp_path, convert="embed")
    assert run(loaded, random_inputs([4]), EMBED)[0].shape == (36,)
    loaded.runner.close()


def test_a_generating_model_may_be_run_for_its_vectors(default_folder: Path) -> None:
    model = load_manifest(default_folder)
    assert model.pooling is None
    loaded = load_pooling("smollm2-135m", default_folder.parent.parent, runner="pooling")
    one, other = run(loaded, random_inputs([6, 40], vocab=40_000), EMBED)
    assert one.shape == other.shape == (576,)
    with pytest.raises(PenstockError, match="support only none"):
        load_pooling("all-minilm-l6-v2", default_folder.parent.parent, quantization="int8")
    loaded.runner.close()
