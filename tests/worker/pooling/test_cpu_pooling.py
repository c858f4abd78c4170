"""Pooling models on the CPU kernels: against transformers, and an input's bits in any company."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import WeightFiles
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling
from penstock_worker.forward.interface import Unable
from penstock_worker.pooling import cpu, reference
from testing.pooling_models import (
    DEBERTA,
    cosine_distance,
    dense_files,
    load_pooling,
    name_words,
    random_inputs,
    run,
    save,
    word_tokenizer,
)
from tests.worker.cpu_model import CPUModel
from tests.worker.models.family_cases import CASES
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.models.test_recurrent_models import read

LENGTHS = [1, 2, 31, 7, 64, 33, 40, 16, 5]
KERNEL_SIZES = {"hidden_size": 48, "intermediate_size": 72, "num_attention_heads": 3}
"""Heads of 16 numbers: what the kernels multiply at a time."""
SIZES = {"DistilBert": {"dim": 48, "hidden_dim": 72, "n_heads": 3}}

ENCODERS: dict[str, dict[str, Any]] = {
    "BertModel": {},
    "RobertaModel": {"max_position_embeddings": 82, "type_vocab_size": 1},
    "XLMRobertaModel": {"max_position_embeddings": 82, "type_vocab_size": 1},
    "DistilBertModel": {},
    "MPNetModel": {"max_position_embeddings": 82},
    "ElectraModel": {"embedding_size": 32},
    "AlbertModel": {"embedding_size": 32, "num_hidden_layers": 4, "num_hidden_groups": 2},
    "DebertaV2Model": DEBERTA,
    "NomicBertModel": {},
    "JinaEmbeddingsV3Model": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "ModernBertModel": {
        "local_attention": 12,
        "num_hidden_layers": 4,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "EuroBertModel": {
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "mask_token_id": 4,
    },
    "Gemma3TextModel": {
        "use_bidirectional_attention": True,
        "sliding_window": 16,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "BertForSequenceClassification": {},
    "ElectraForSequenceClassification": {"embedding_size": 32},
    "AlbertForSequenceClassification": {"embedding_size": 32},
    "DebertaV2ForSequenceClassification": DEBERTA,
    "ModernBertForSequenceClassification": {
        **ENCODERS["ModernBertModel"],
        "classifier_pooling": "mean",
        "classifier_bias": True,
        "norm_bias": True,
    },
}


def _model(folder: Path, kind: str, settings: dict[str, Any]) -> Any:
    family = kind.removesuffix("ForSequenceClassification").removesuffix("Model")
    model = save(folder, kind, **SIZES.get(family, KERNEL_SIZES), **settings)
    if family != "DebertaV2":  # It has one way.
        model.set_attn_implementation("eager")  # The other ways leave soft caps out.
    return model


def _loaded(folder: Path, cache: Path, backend: str, **settings: Any) -> Any:
    return load_pooling(str(folder), cache, worker={"attention_backend": backend}, **settings)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_encoders_equal_transformers(tmp_path: Path, kind: str, backend: str) -> None:
    model = _model(tmp_path / "m", kind, ENCODERS[kind])
    loaded = _loaded(tmp_path / "m", tmp_path, backend)
    inputs = random_inputs(LENGTHS)
    found = run(loaded, inputs, Pooling("token_embed", normalize=False))
    for tokens, vectors in zip(inputs, found, strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([tokens])).last_hidden_state[0].numpy()
        assert np.abs(vectors - wanted).max() < 2e-4
    loaded.runner.close()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classifiers_equal_transformers(tmp_path: Path, kind: str, backend: str) -> None:
    model = _model(tmp_path / "m", kind, {**CLASSIFIERS[kind], "num_labels": 3})
    loaded = _loaded(tmp_path / "m", tmp_path, backend)
    inputs = random_inputs([31, 7])
    for tokens, found in zip(inputs, run(loaded, inputs, Pooling("classify")), strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([tokens])).logits[0].softmax(0).numpy()
        assert np.abs(found - wanted).max() < 1e-4
    loaded.runner.close()


@pytest.mark.parametrize(
    "kind",
    [
        *("BertModel", "MPNetModel", "NomicBertModel", "ModernBertModel", "Gemma3TextModel"),
        *("ElectraModel", "AlbertModel", "DebertaV2Model"),
    ],
)
def test_vectors_bits_on_the_cpu_are_an_inputs_own(tmp_path: Path, kind: str) -> None:
    """Two threads; groups of inputs begin and end anywhere, and splits of keys are several."""
    longer = {"max_position_embeddings": 700}
    _model(tmp_path / "m", kind, {**ENCODERS[kind], **longer})
    loaded = _loaded(tmp_path / "m", tmp_path, "cpu", threads=2)
    inputs = random_inputs([*range(1, 40, 4), 130, 600, 256, 300])
    asked = Pooling("token_embed")
    crowd, backwards = run(loaded, inputs, asked), run(loaded, inputs[::-1], asked)[::-1]
    for tokens, one, other in zip(inputs, crowd, backwards, strict=True):
        (alone,) = run(loaded, [tokens], asked)
        assert np.array_equal(alone, one), f"{len(tokens)} tokens in company"
        assert np.array_equal(alone, other), f"{len(tokens)} tokens in another order"
    loaded.runner.close()


def test_threads_do_not_change_bits(tmp_path: Path) -> None:
    """With eight threads and one head, splits of the longest input's keys are shared out."""
    sizes = {"hidden_size": 16, "intermediate_size": 40, "num_attention_heads": 1}
    save(tmp_path / "m", "BertModel", **sizes, max_position_embeddings=700)
    inputs = random_inputs([30, 290])
    found = []
    for threads in (1, 8):
        loaded = _loaded(tmp_path / "m", tmp_path, "cpu", threads=threads)
        found.append(run(loaded, inputs, Pooling("token_embed")))
        loaded.runner.close()
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


def test_what_the_kernels_lack_is_said(tmp_path: Path) -> None:
    save(tmp_path / "m", "BertModel")
    with pytest.raises(StartupError, match="head_dim is 12, not a multiple of 16"):
        _loaded(tmp_path / "m", tmp_path, "cpu")
    save(tmp_path / "r", "BertModel", **KERNEL_SIZES, hidden_act="relu")
    with pytest.raises(StartupError, match="the model has relu"):
        _loaded(tmp_path / "r", tmp_path, "cpu")
    _loaded(tmp_path / "r", tmp_path, "auto").runner.close()


def test_dense_layers_make_an_embedding(tmp_path: Path) -> None:
    """EmbeddingGemma's two, one with a bias and an activation, as its sentence-transformers files
    say."""
    model = _model(tmp_path / "m", "Gemma3TextModel", ENCODERS["Gemma3TextModel"])
    matrices = dense_files(tmp_path / "m", [(48, 80, True, "Tanh"), (80, 24, False, "Identity")])
    loaded = _loaded(tmp_path / "m", tmp_path, "cpu")
    assert loaded.setup.pooling is not None
    assert loaded.setup.pooling.size == 24
    for tokens in random_inputs([20, 5]):
        with torch.inference_mode():
            wanted = model(torch.tensor([tokens])).last_hidden_state[0].mean(0)
        wanted = torch.tanh(matrices[0]["linear.weight"] @ wanted + matrices[0]["linear.bias"])
        wanted = matrices[1]["linear.weight"] @ wanted
        (found,) = run(loaded, [tokens], Pooling("embed"))
        assert found.shape == (24,)
        assert cosine_distance(found, wanted.numpy()) < 1e-6
        assert abs(float((found**2).sum()) - 1) < 1e-5
    loaded.runner.close()


DENSE_REFUSED = {
    "another activation": ([(48, 8, False, "ReLU")], "'torch.nn.ReLU' is not served"),
    "another width": ([(47, 8, False, "Identity")], "no layer for vectors of 48 numbers"),
}


@pytest.mark.parametrize("case", DENSE_REFUSED)
def test_dense_layers_that_cannot_be_computed(tmp_path: Path, case: str) -> None:
    layers, reason = DENSE_REFUSED[case]
    save(tmp_path / "m", "BertModel", **KERNEL_SIZES)
    dense_files(tmp_path / "m", layers)
    with pytest.raises(UnsupportedModel, match=reason):
        prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))


def test_a_setting_that_makes_an_encoder_part_of_another_model_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "m", "BertModel", **KERNEL_SIZES)
    file = tmp_path / "m" / "config.json"
    stated = json.loads(file.read_text())
    file.write_text(json.dumps({**stated, "add_cross_attention": True}))
    with pytest.raises(UnsupportedModel, match="add_cross_attention is True, which is not served"):
        prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))
    file.write_text(json.dumps({**stated, "not_of_bert": True}))
    prepare(str(tmp_path / "m"), cache_dir=str(tmp_path))


DECODERS: dict[str, dict[str, Any]] = {
    "LlamaForSequenceClassification": {"num_key_value_heads": 1},
    "MistralForSequenceClassification": {"num_key_value_heads": 1, "sliding_window": 9},
    "Qwen2ForSequenceClassification": {"num_key_value_heads": 3},
    "Qwen3ForSequenceClassification": {"num_key_value_heads": 3, "head_dim": 16},
    "Gemma2ForSequenceClassification": {"num_key_value_heads": 1, "head_dim": 32},
    "Phi3ForSequenceClassification": {"num_key_value_heads": 3},
    "StableLmForSequenceClassification": {"num_key_value_heads": 3},
}
NO_SPECIALS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize("labels", [1, 4])
@pytest.mark.parametrize("kind", DECODERS)
def test_heads_of_decoders_equal_transformers(tmp_path: Path, kind: str, labels: int) -> None:
    """One label: a reward."""
    model = _model(tmp_path / "m", kind, {**DECODERS[kind], **NO_SPECIALS, "num_labels": labels})
    loaded = _loaded(tmp_path / "m", tmp_path, "cpu")
    inputs = random_inputs([9, 30])
    asked = Pooling("classify", activate=False)
    whole = run(loaded, inputs, asked)
    for tokens, found in zip(inputs, whole, strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([tokens])).logits[0].numpy()
        assert np.abs(found - wanted).max() < 2e-4 * max(1.0, np.abs(wanted).max())
    for found, chunked in zip(whole, run(loaded, inputs, asked, chunk=7), strict=True):
        assert np.array_equal(found, chunked), "chunks change bits"
    loaded.runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gemma4-shared-kv", "gemma3n"])
def test_layers_that_read_another_ones_keys(tmp_path: Path, case: str) -> None:
    """Vectors of a decoder some of whose layers have no keys and values of their own."""
    make_theirs(*CASES[case]).save_pretrained(tmp_path / "m")
    word_tokenizer(tmp_path / "m")
    inputs, asked, found = random_inputs([9, 60]), Pooling("embed"), []
    for backend in ("cpu", "reference"):
        loaded = _loaded(tmp_path / "m", tmp_path, backend, runner="pooling")
        found.append(run(loaded, inputs, asked))
        for whole, chunked in zip(found[-1], run(loaded, inputs, asked, chunk=7), strict=True):
            assert np.array_equal(whole, chunked), "chunks change bits"
        loaded.runner.close()
    for one, other in zip(*found, strict=True):
        assert cosine_distance(one, other) < 1e-6


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_reranker_scores_by_two_logits(tmp_path: Path, backend: str, tied: bool) -> None:
    settings = {"num_key_value_heads": 3, "head_dim": 16, "tie_word_embeddings": tied}
    folder = tmp_path / "Qwen3-Reranker-tiny"
    model = _model(folder, "Qwen3ForCausalLM", {**settings, **NO_SPECIALS})
    name_words(folder, {"no": 11, "yes": 12})
    loaded = _loaded(folder, tmp_path, backend)
    assert loaded.setup.pooling is not None
    assert loaded.setup.pooling.labels == ("yes",)
    for tokens in random_inputs([9, 30]):
        with torch.inference_mode():
            logits = model(torch.tensor([tokens])).logits[0, -1, [11, 12]]
        (found,) = run(loaded, [tokens], Pooling("classify"))
        assert abs(float(found[0]) - float(logits.softmax(0)[1])) < 1e-4
    loaded.runner.close()


def test_a_rerankers_answers_are_named_in_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    settings = {"num_key_value_heads": 3, "classifier_from_token": ["w3", "w4"]}
    _model(folder, "LlamaForCausalLM", {**settings, **NO_SPECIALS})
    pooling = load_manifest(prepare(str(folder), cache_dir=str(tmp_path))).pooling
    assert pooling is not None
    assert pooling.answers == (3, 4)
    assert pooling.template is None
    file = folder / "config.json"
    stated = {**json.loads(file.read_text()), "classifier_from_token": ["w3", "perhaps"]}
    file.write_text(json.dumps(stated))
    with pytest.raises(UnsupportedModel, match="no token 'perhaps'"):
        prepare(str(folder), cache_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("lfm2", "recurrent layers of short convolutions: no vectors are made of those"),
        ("nemotron-h", "recurrent layers of Mamba 2: no vectors are made of those"),
    ],
)
def test_states_that_pooled_sequences_lack_are_refused_by_name(case: str, said: str) -> None:
    model = CPUModel(read(case), WeightFiles(format="safetensors", files=(), dtype=""), "float32")
    setup = msgspec.structs.replace(
        model.setup(), pooling=PoolingConfig(mode="last", normalize=True, size=72)
    )
    with pytest.raises(Unable, match=said):
        cpu.recipe(model.prepared(), setup, 1)
    with pytest.raises(Unable, match=said):
        reference.recipe(model.prepared(), setup, 1)


def test_layers_of_feed_forward_alone_are_refused_by_name() -> None:
    layers = [each for each in read("nemotron-h").layers if each.recurrent is None]
    config = msgspec.structs.replace(read("nemotron-h"), num_layers=len(layers), layers=(*layers,))
    model = CPUModel(config, WeightFiles(format="safetensors", files=(), dtype=""), "float32")
    setup = msgspec.structs.replace(
        model.setup(), pooling=PoolingConfig(mode="last", normalize=True, size=72)
    )
    with pytest.raises(Unable, match="layers of attention or feed-forward alone: no vectors"):
        cpu.recipe(model.prepared(), setup, 1)
