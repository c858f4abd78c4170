"""Late interaction (ColBERT) against transformers, and an input's bits in any company."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.errors import UnsupportedModel
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling
from penstock_worker.forward.interface import Unable
from penstock_worker.pooling import triton
from testing.pooling_models import facts_of, load_pooling, random_inputs, run
from tests.worker.pooling.late_models import SPECIAL, expected, save_late, save_stanford

TOKENS = Pooling("token_embed")
BACKENDS = ("cpu", "reference")


def _loaded(folder: Path, cache: Path, backend: str, **settings: Any) -> Any:
    return load_pooling(str(folder), cache, worker={"attention_backend": backend}, **settings)


def _filled(length: int, seen: int) -> tuple[list[int], Pooling]:
    """A query of `seen` tokens that is filled up."""
    (tokens,) = random_inputs([seen], seed=seen)
    filling = [SPECIAL.index("[MASK]")] * (length - seen)
    return tokens + filling, Pooling("token_embed", seen=seen)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["BertModel", "ModernBertModel"])
def test_vectors_equal_transformers(tmp_path: Path, kind: str, backend: str) -> None:
    model, weight = save_late(tmp_path / "m", kind)
    loaded = _loaded(tmp_path / "m", tmp_path, backend)
    documents = random_inputs([1, 31, 60, 7])
    queries = [_filled(12, seen) for seen in (3, 11, 12)]
    inputs = [*documents, *(tokens for tokens, _ in queries)]
    asked = [TOKENS] * 4 + [pooling for _, pooling in queries]
    found = run(loaded, inputs, *asked)
    for tokens, pooling, vectors in zip(inputs, asked, found, strict=True):
        assert vectors.shape == (len(tokens), 20)
        assert np.abs(vectors - expected(model, weight, tokens, pooling.seen)).max() < 5e-5
    loaded.runner.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["BertModel", "ModernBertModel"])
def test_bits_of_vectors_of_tokens_are_an_inputs_own(
    tmp_path: Path, kind: str, backend: str
) -> None:
    save_late(tmp_path / "m", kind)
    loaded = _loaded(tmp_path / "m", tmp_path, backend, threads=2)
    documents = random_inputs([1, 60, 33, 8, 59])
    queries = [_filled(12, seen) for seen in (2, 12, 7)]
    inputs = [documents[0], queries[0][0], *documents[1:3], *(each for each, _ in queries[1:])]
    inputs += documents[3:]
    asked = [TOKENS, queries[0][1], TOKENS, TOKENS, queries[1][1], queries[2][1], TOKENS, TOKENS]
    crowd = run(loaded, inputs, *asked)
    backwards = run(loaded, inputs[::-1], *asked[::-1])[::-1]
    for tokens, pooling, one, other in zip(inputs, asked, crowd, backwards, strict=True):
        (alone,) = run(loaded, [tokens], pooling)
        assert np.array_equal(alone, one)
        assert np.array_equal(alone, other)
    loaded.runner.close()


@pytest.mark.parametrize("outputs", [20, 48])
def test_what_goes_into_a_layer_is_added_where_its_file_says_so(
    tmp_path: Path, outputs: int
) -> None:
    model, weight = save_late(tmp_path / "m", outputs=outputs)
    folder = tmp_path / "m" / "1_Dense"
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, "use_residual": True}))
    beside = torch.eye(48)
    if outputs == 20:
        beside = torch.randn(20, 48)
        save_file(
            {"linear.weight": weight, "residual.weight": beside}, folder / "model.safetensors"
        )
    loaded = _loaded(tmp_path / "m", tmp_path, "cpu")
    inputs = random_inputs([9, 40])
    for tokens, found in zip(inputs, run(loaded, inputs, TOKENS), strict=True):
        assert np.abs(found - expected(model, weight + beside, tokens)).max() < 1e-5
    loaded.runner.close()


def test_stanfords_files_say_the_same(tmp_path: Path) -> None:
    model, weight = save_stanford(tmp_path / "m", attend_to_mask_tokens=True)
    loaded = _loaded(tmp_path / "m", tmp_path, "cpu")
    late = loaded.setup.pooling.late
    assert (late.query_prefix, late.document_prefix, late.filling) == (4, 5, 3)
    assert late.query_length == 12
    assert late.sees_filling
    assert [SPECIAL[token] for token in late.skipped] == SPECIAL[6:]
    inputs = random_inputs([9, 40])
    for tokens, found in zip(inputs, run(loaded, inputs, TOKENS), strict=True):
        assert np.abs(found - expected(model, weight, tokens)).max() < 1e-5
    loaded.runner.close()


def test_what_the_model_does_is_told_to_front_ends(tmp_path: Path) -> None:
    save_late(tmp_path / "m")
    facts = facts_of(str(tmp_path / "m"), tmp_path)
    welcome = facts.welcome(1, 100)
    assert welcome.pooling_tasks == ("token_embed",)
    assert facts.max_model_len == 60  # the document's
    assert facts_of(str(tmp_path / "m"), tmp_path, max_model_len=80).max_model_len == 80
    assert welcome.pooling is not None
    assert welcome.pooling.size == 20


def test_a_gpus_kernels_hide_no_tokens(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    save_late(tmp_path / "m")
    prepared = load_manifest(prepare(str(tmp_path / "m"), cache_dir=str(tmp_path)))
    setup = facts_of(str(tmp_path / "m"), tmp_path).setup(1)
    with pytest.raises(Unable, match="tokens that others don't see"):
        triton.encoder_recipe(prepared, prepared.config, setup, None, None)  # type: ignore[arg-type]


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "prefix": ("BertModel", {"query_prefix": "[Q] "}, r"no token '\[Q\] '"),
    "too long a query": ("BertModel", {"query_length": 81}, "query_length is 81; .* at most 80"),
    "no document": ("BertModel", {"document_length": 0}, "document_length is 0"),
    "window": ("ModernBertModel", {"query_length": 14}, "query_length is 14, .* see 13"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_computed_is_refused_by_name(tmp_path: Path, case: str) -> None:
    kind, settings, said = WRONG[case]
    save_late(tmp_path / "m", kind, **settings)
    with pytest.raises(UnsupportedModel, match=said):
        prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))


def test_a_module_that_isnt_known_is_refused_by_name(tmp_path: Path) -> None:
    save_late(tmp_path / "m")
    file = tmp_path / "m" / "modules.json"
    modules = json.loads(file.read_text())
    modules[1]["type"] = "pylate.models.Other"
    file.write_text(json.dumps(modules))
    with pytest.raises(UnsupportedModel, match="type 'Other' is not served for late interaction"):
        prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))
