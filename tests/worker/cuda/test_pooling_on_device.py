"""Pooling models over Triton's kernels: against transformers, the CPU's path, and themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.errors import StartupError
from penstock.model.prepared_model import PreparedModel
from penstock.prepare import load_manifest
from penstock.protocol.common import Pooling
from penstock.protocol.to_worker import Setup
from penstock_worker.forward import triton as generating
from penstock_worker.forward.interface import Unable
from penstock_worker.loading.loaded import Loaded
from penstock_worker.loading.pooling import choose_pooling
from penstock_worker.pooling import triton
from penstock_worker.pooling.pooler import Pooler
from testing.pooling_models import (
    DEBERTA,
    cosine_distance,
    facts_of,
    load_pooling,
    random_inputs,
    run,
    save,
    sentence_files,
)
from tests.interpreted_triton import DEVICE

ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
EMBED = Pooling("embed", normalize=False)
TOKENS = Pooling("token_embed", normalize=False)
LENGTHS = [1, 33, 6]
ONE_LAYER = {"num_hidden_layers": 1}


def on_device(model: str, cache: Path, *, invariant: bool = False, **settings: Any) -> Loaded:
    worker = {"attention_backend": "triton", "batch_invariant": invariant}
    if DEVICE.type == "cpu":
        worker["device"] = "cpu"
    settings = {"budget": 34, "sequences": 3} | settings
    loaded = load_pooling(model, cache, worker=worker, **settings)
    assert isinstance(loaded.runner._kind._pooler, Pooler)
    return loaded


def last_hidden(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).last_hidden_state[0].numpy()


def check_company(loaded: Loaded, inputs: list[list[int]], asked: Pooling) -> list[np.ndarray]:
    """The vectors, which are the same bits alone and in other company."""
    crowd = run(loaded, inputs, asked)
    others = run(loaded, inputs[:0:-1], asked)[::-1]
    for tokens, one, other in zip(inputs[1:], crowd[1:], others, strict=True):
        assert np.array_equal(one, other), f"{len(tokens)} tokens in other company"
    assert np.array_equal(run(loaded, inputs[:1], asked)[0], crowd[0]), "alone"
    return crowd


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mean_tokens", "max_tokens", "cls_token"])
def test_encoders_equal_transformers_and_the_reference(tmp_path: Path, mode: str) -> None:
    kind = {"max_tokens": "MPNetModel"}.get(mode, "BertModel")
    layers = 2 if mode == "mean_tokens" else 1
    model = save(tmp_path / "m", kind, max_position_embeddings=82, num_hidden_layers=layers)
    sentence_files(tmp_path / "m", mode, normalize=False)
    loaded = on_device(str(tmp_path / "m"), tmp_path, invariant=mode == "mean_tokens")
    plain = load_pooling(str(tmp_path / "m"), tmp_path)
    inputs = random_inputs(LENGTHS)
    found = run(loaded, inputs, TOKENS)
    for tokens, vectors in zip(inputs, found, strict=True):
        assert np.abs(vectors - last_hidden(model, tokens)).max() < 1e-4
    pairs = zip(run(loaded, inputs, EMBED), run(plain, inputs, EMBED), strict=True)
    assert max(np.abs(ours - theirs).max() for ours, theirs in pairs) < 1e-4
    loaded.runner.close()
    plain.runner.close()


def test_vectors_bits_on_the_device_are_an_inputs_own(tmp_path: Path) -> None:
    """Sizes that no tile divides; a classifier, whose head is computed for all inputs at once."""
    kind = "BertForSequenceClassification"
    sizes = {"hidden_size": 45, "intermediate_size": 35, "num_attention_heads": 5} | ONE_LAYER
    model = save(tmp_path / "m", kind, num_labels=3, **sizes)
    loaded = on_device(str(tmp_path / "m"), tmp_path, invariant=True)
    inputs = random_inputs(LENGTHS)
    check_company(loaded, inputs, TOKENS)
    classes = check_company(loaded, inputs, Pooling("classify"))
    for tokens, found in zip(inputs, classes, strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([tokens])).logits[0].softmax(0).numpy()
        assert np.abs(found - wanted).max() < 1e-4
    mixed = run(loaded, inputs, *[Pooling("classify"), TOKENS, Pooling("classify")])
    assert [each.shape for each in mixed] == [(3,), (33, 45), (3,)]
    assert np.array_equal(mixed[2], classes[2])
    loaded.runner.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes(tmp_path: Path, dtype: str) -> None:
    model = save(tmp_path / "m", "BertModel", **ONE_LAYER)
    loaded = on_device(str(tmp_path / "m"), tmp_path, dtype=dtype, budget=14)
    inputs = random_inputs([14, 7])
    bound = 1e-3 if dtype == "bfloat16" else 1e-4
    for tokens, found in zip(inputs, run(loaded, inputs, TOKENS), strict=True):
        assert cosine_distance(found, last_hidden(model, tokens)) < bound
    loaded.runner.close()


@pytest.mark.slow
def test_decoders_embed_by_their_last_token(tmp_path: Path) -> None:
    model = save(tmp_path / "m", "Qwen3Model", num_key_value_heads=3, head_dim=20, **ONE_LAYER)
    sentence_files(tmp_path / "m", "lasttoken", normalize=False)
    small = {"budget": 9, "sequences": 3, "max_model_len": 20}
    loaded = on_device(str(tmp_path / "m"), tmp_path, invariant=True, **small)
    inputs = random_inputs([1, 19, 7])
    whole = check_company(loaded, inputs, EMBED)
    for tokens, found in zip(inputs, whole, strict=True):
        assert np.abs(found - last_hidden(model, tokens)[-1]).max() < 1e-4
    for found, chunked in zip(whole, run(loaded, inputs, EMBED, chunk=9), strict=True):
        assert np.array_equal(found, chunked), "chunks change bits"
    assert loaded.ready.num_kv_blocks == 3 * 2  # Of 16 tokens: no more than could be in use.
    loaded.runner.close()


def test_a_decoder_with_a_classification_head(tmp_path: Path) -> None:
    kind = "LlamaForSequenceClassification"
    model = save(tmp_path / "m", kind, num_labels=4, num_key_value_heads=3, pad_token_id=0)
    small = {"budget": 8, "sequences": 2, "max_model_len": 8}
    loaded = on_device(str(tmp_path / "m"), tmp_path, **small)
    inputs = random_inputs([7, 3])
    for tokens, found in zip(inputs, run(loaded, inputs, Pooling("classify")), strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([tokens])).logits[0].softmax(0).numpy()
        assert np.abs(found - wanted).max() < 1e-4
    loaded.runner.close()


@pytest.mark.long
@pytest.mark.packaged_model
def test_minilm_equals_transformers(tmp_path: Path) -> None:
    import transformers

    loaded = on_device("all-minilm-l6-v2", tmp_path, budget=12, sequences=2)
    (file,) = load_manifest(loaded.setup.model_dir).weights.files
    model = transformers.AutoModel.from_pretrained(str(Path(file).parent)).eval()
    inputs = random_inputs([12, 5], vocab=30_000)
    for tokens, found in zip(inputs, run(loaded, inputs, Pooling("embed")), strict=True):
        assert cosine_distance(found, last_hidden(model, tokens).mean(0)) < 1e-6
        assert abs(float((found**2).sum()) - 1) < 1e-5
    loaded.runner.close()


# ---- which backend


@pytest.fixture
def bert(tmp_path: Path) -> tuple[PreparedModel, Setup]:
    save(tmp_path / "m", "BertModel")
    setup: Setup = facts_of(str(tmp_path / "m"), tmp_path).setup(1)
    return load_manifest(setup.model_dir), setup


@pytest.fixture
def a_gpu(pretend_gpu: Callable[[str, tuple[int, int]], None]) -> None:
    pretend_gpu("NVIDIA H200", (9, 0))


@pytest.mark.usefixtures("a_gpu")
def test_auto_takes_a_gpu_where_there_is_one(bert: tuple[PreparedModel, Setup]) -> None:
    prepared, setup = bert
    recipe = choose_pooling(prepared, setup, 1)
    assert (recipe.backend, recipe.device_name) == ("triton", "cuda: NVIDIA H200")
    assert "sm_90" in recipe.fingerprint
    replace = msgspec.structs.replace
    assert choose_pooling(prepared, replace(setup, device="cpu"), 1).backend == "reference"
    wanted = replace(setup, device="cuda", attention_backend="reference")
    with pytest.raises(StartupError, match=r"reference computes on the CPU, and device is 'cuda'"):
        choose_pooling(prepared, wanted, 1)


@pytest.mark.usefixtures("a_gpu")
def test_a_gpu_without_a_c_compiler_leaves_it_to_the_cpu(
    bert: tuple[PreparedModel, Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generating, "c_compiler", lambda: None)
    prepared, setup = bert
    assert choose_pooling(prepared, setup, 1).backend == "reference"
    with pytest.raises(StartupError, match="there is no C compiler"):
        choose_pooling(prepared, msgspec.structs.replace(setup, device="cuda"), 1)


@ON_CPU
def test_what_cannot_be_had_here(bert: tuple[PreparedModel, Setup]) -> None:
    prepared, setup = bert
    replace = msgspec.structs.replace
    assert choose_pooling(prepared, setup, 1).backend == "reference"
    with pytest.raises(StartupError, match=r"device is 'cuda', but torch .* finds no GPU"):
        choose_pooling(prepared, replace(setup, device="cuda"), 1)
    with pytest.raises(StartupError, match="'flash'; for pooling models allowed: auto"):
        choose_pooling(prepared, replace(setup, attention_backend="flash"), 1)


@ON_CPU
def test_without_an_interpreter_a_gpu_is_needed(
    bert: tuple[PreparedModel, Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generating, "INTERPRETED", SimpleNamespace(value=False))
    prepared, setup = bert
    with pytest.raises(Unable, match="it needs a GPU"):
        triton.recipe(prepared, setup, 1)


def test_numerics_name_all_that_bits_depend_on(bert: tuple[PreparedModel, Setup]) -> None:
    prepared, setup = bert
    assert setup.pooling is not None
    setup = msgspec.structs.replace(setup, attention_backend="triton")
    plain = choose_pooling(prepared, setup, 1).fingerprint
    changes: list[dict[str, Any]] = [
        {"dtype": "bfloat16"},
        {"batch_invariant": True},
        {"attention_backend": "reference"},
        {"pooling": msgspec.structs.replace(setup.pooling, mode="max")},
    ]
    others = {
        choose_pooling(prepared, msgspec.structs.replace(setup, **change), 1).fingerprint
        for change in changes
    }
    assert len(others | {plain}) == len(changes) + 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ElectraModel", "AlbertModel", "DebertaV2Model"])
def test_relatives_of_bert_on_the_device(tmp_path: Path, kind: str) -> None:
    """DeBERTa's attention is torch's, for one input at a time; its convolution a product."""
    settings: dict[str, Any] = {"embedding_size": 20}
    if kind == "DebertaV2Model":
        settings = {**DEBERTA, "conv_kernel_size": 3}
    model = save(tmp_path / "m", kind, **settings)
    loaded = on_device(str(tmp_path / "m"), tmp_path, invariant=True)
    inputs = random_inputs(LENGTHS)
    for tokens, vectors in zip(inputs, check_company(loaded, inputs, TOKENS), strict=True):
        assert np.abs(vectors - last_hidden(model, tokens)).max() < 1e-4
    loaded.runner.close()
