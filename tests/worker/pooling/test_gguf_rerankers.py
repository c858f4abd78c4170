"""Heads that classify texts in GGUF files, written as llama.cpp's converter does it, against
transformers: rerankers have one class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from penstock.errors import UnsupportedModel
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling
from testing.pooling_models import VOCAB, load_pooling, random_inputs, run, save
from tests.worker.pooling.gguf_relatives import ARCH, Writer, of_bert, write_relative
from tests.worker.pooling.makers_encoders import NeoBert
from tests.worker.pooling.test_cpu_pooling import ENCODERS
from tests.worker.pooling.test_gguf_relatives import SHAPE, SIZES, neobert_says

pytestmark = pytest.mark.timeout(240)

LAYERS, SIZE, INNER, HEADS = SHAPE
SCORE = Pooling("classify", activate=False)
Scored = Callable[[torch.Tensor], torch.Tensor]


def _bert_says(writer: Writer, labels: int, rank: bool) -> None:
    writer.add_layer_norm_eps(1e-12)
    if rank:
        writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_classifier_output_labels([f"class {n}" for n in range(labels)])


def _as_converted(state: Mapping[str, torch.Tensor], *prefixes: str) -> dict[str, torch.Tensor]:
    """Names without prefixes; what is left out of BERT is left out, and a direct projection is
    renamed."""
    found = {}
    for name, tensor in state.items():
        for prefix in prefixes:
            name = name.removeprefix(f"{prefix}.")
        if name.startswith("pooler.") or name.endswith("position_ids"):
            continue
        if name in ("classifier.weight", "classifier.bias"):
            name = name.replace("classifier", "classifier.out_proj")
        found[name] = tensor
    return found


def _xlm_roberta(folder: Path, labels: int, rank: bool = False) -> tuple[Path, Scored]:
    """As bge-reranker-v2-m3."""
    kind = "XLMRobertaForSequenceClassification"
    settings = {"type_vocab_size": 1, "pad_token_id": 1, "max_position_embeddings": 82}
    model = save(folder / "m", kind, **SIZES, **settings, num_labels=labels, layer_norm_eps=1e-12)
    tensors = _as_converted(model.state_dict(), "roberta")
    places = "embeddings.position_embeddings.weight"
    tensors[places] = tensors[places][2:]

    def says(writer: Writer) -> None:
        _bert_says(writer, labels, rank)

    path = write_relative(folder / "m.gguf", ARCH.BERT, SHAPE, tensors, says)
    return path, lambda tokens: model(tokens[None]).logits[0]


def _distilbert(folder: Path, labels: int, rank: bool = False) -> tuple[Path, Scored]:
    sizes = {"dim": SIZE, "hidden_dim": INNER, "n_heads": HEADS}
    kind = "DistilBertForSequenceClassification"
    model = save(folder / "m", kind, **sizes, num_labels=labels)
    tensors = _as_converted(model.state_dict(), "distilbert")

    def says(writer: Writer) -> None:
        _bert_says(writer, labels, rank)

    path = write_relative(folder / "m.gguf", ARCH.BERT, SHAPE, tensors, says)
    return path, lambda tokens: model(tokens[None]).logits[0]


def _modernbert(folder: Path, labels: int, rank: bool = False) -> tuple[Path, Scored]:
    """As gte-reranker-modernbert-base."""
    settings = {**ENCODERS["ModernBertModel"], "num_hidden_layers": LAYERS}
    settings |= {"classifier_pooling": "mean", "global_attn_every_n_layers": 3}
    kind = "ModernBertForSequenceClassification"
    model = save(folder / "m", kind, **SIZES, **settings, num_labels=labels)
    model.set_attn_implementation("eager")
    tensors = _as_converted(model.state_dict(), "model")
    ropes = model.config.rope_parameters

    def says(writer: Writer) -> None:
        _bert_says(writer, labels, rank)
        writer.kv_data[0].pop("modern-bert.attention.layer_norm_epsilon")
        writer.add_layer_norm_eps(model.config.norm_eps)
        writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(model.config.local_attention)
        writer.add_uint32("modern-bert.attention.sliding_window_pattern", 3)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)

    path = write_relative(folder / "m.gguf", ARCH.MODERN_BERT, SHAPE, tensors, says)
    return path, lambda tokens: model(tokens[None]).logits[0]


def _neobert(folder: Path, labels: int, rank: bool = False) -> tuple[Path, Scored]:
    torch.manual_seed(5)
    model = NeoBert(VOCAB, SIZE, INNER, LAYERS, HEADS, labels)
    tensors = _as_converted(model.state_dict())

    def says(writer: Writer) -> None:
        neobert_says(writer)
        writer.add_classifier_output_labels([f"class {n}" for n in range(labels)])

    return write_relative(folder / "m.gguf", ARCH.NEO_BERT, SHAPE, tensors, says), model.logits


MODELS = {
    "XLM-RoBERTa": _xlm_roberta,
    "DistilBERT": _distilbert,
    "ModernBERT": _modernbert,
    "NeoBERT": _neobert,
}


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("family", MODELS)
def test_scores_equal_the_makers(tmp_path: Path, family: str, backend: str, labels: int) -> None:
    path, scored = MODELS[family](tmp_path, labels)
    loaded = load_pooling(str(path), tmp_path, worker={"attention_backend": backend})
    inputs = random_inputs([31, 7, 1])
    crowd = run(loaded, inputs, SCORE)
    for tokens, found in zip(inputs, crowd, strict=True):
        with torch.inference_mode():
            wanted = scored(torch.tensor(tokens)).numpy()
        assert found.shape == (labels,)
        assert np.abs(found - wanted).max() < 5e-4 * max(1.0, np.abs(wanted).max())
        (alone,) = run(loaded, [tokens], SCORE)
        assert np.array_equal(alone, found)
    (finished,) = run(loaded, inputs[:1], Pooling("classify"))
    raw = torch.from_numpy(crowd[0].copy())
    made = raw.sigmoid() if labels == 1 else raw.softmax(0)
    assert np.abs(finished - made.numpy()).max() < 1e-6
    loaded.runner.close()


def test_labels_are_the_files(tmp_path: Path) -> None:
    path, _ = _xlm_roberta(tmp_path, 3, rank=True)
    pooling = load_manifest(prepare(str(path), cache_dir=str(tmp_path))).pooling
    assert pooling is not None
    assert pooling.labels == ("class 0", "class 1", "class 2")
    assert (pooling.mode, pooling.activation, pooling.normalize) == ("cls", "softmax", False)


def _bert(folder: Path, **changes: Any) -> Path:
    model = save(folder / "m", "BertForSequenceClassification", **SIZES, num_labels=1)
    tensors = _as_converted(model.state_dict(), "bert")
    for name in changes.get("without", ()):
        del tensors[name]
    for name, other in changes.get("named", {}).items():
        tensors[other] = tensors.pop(name)
    return write_relative(
        folder / "m.gguf", ARCH.BERT, SHAPE, tensors, changes.get("says", of_bert)
    )


OUTER = "classifier.out_proj"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a head over BERT's pooler": (
        {},
        "cls.output.weight and no cls.weight: its head reads a pooler",
    ),
    "Jina's reranker": (
        {"named": {f"{OUTER}.{end}": f"classifier.{end}" for end in ("weight", "bias")}},
        "cls.weight and no cls.output.weight: its head reads a pooler",
    ),
    "a rank without a head": (
        {
            "without": (f"{OUTER}.weight", f"{OUTER}.bias"),
            "says": lambda writer: _bert_says(writer, 1, True),
        },
        "pooling_type 4 is not served",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_heads_that_the_file_has_half_of_are_refused(tmp_path: Path, case: str) -> None:
    """llama.cpp's converter leaves BERT's pooler out: scores would be others than the model's."""
    changes, reason = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=reason):
        prepare(str(_bert(tmp_path, **changes)), cache_dir=str(tmp_path))


YES, NO = 12, 11
QWEN3 = {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}
QWEN3 |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _qwen3(folder: Path, labels: tuple[str, ...] = ("yes", "no"), **more: Any) -> tuple[Path, Any]:
    """As Qwen3-Reranker: rows of the embedding for two answers, beside a quantised embedding."""
    model = save(folder / "m", "Qwen3ForCausalLM", **SIZES, **QWEN3)
    tensors = dict(model.state_dict())
    del tensors["lm_head.weight"]
    rows = model.lm_head.weight[[YES, NO]].detach()
    tensors["cls.output.weight"] = rows

    def says(writer: Writer) -> None:
        writer.add_head_count_kv(2)
        writer.add_key_length(16)
        writer.add_value_length(16)
        writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
        writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_classifier_output_labels(labels)

    named = {YES: "yes", NO: "no"}
    path = folder / "m.gguf"
    write_relative(path, ARCH.QWEN3, SHAPE, tensors, says, causal=True, named=named, **more)
    return path, model


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_decoder_that_answers_yes_or_no(tmp_path: Path, backend: str) -> None:
    path, model = _qwen3(tmp_path)
    loaded = load_pooling(str(path), tmp_path, worker={"attention_backend": backend})
    assert loaded.setup.pooling is not None
    assert (loaded.setup.pooling.labels, loaded.setup.pooling.answers) == (("yes",), (NO, YES))
    template = loaded.setup.pooling.template
    assert template is not None
    assert "<Query>: cats\n<Document>: A cat." in template.filled("cats", "A cat.")
    inputs = random_inputs([9, 30])
    for tokens, found in zip(inputs, run(loaded, inputs, Pooling("classify")), strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([tokens])).logits[0, -1, [NO, YES]]
        assert abs(float(found[0]) - float(logits.softmax(0)[1])) < 1e-4
    loaded.runner.close()


def test_a_decoder_with_other_answers_is_refused(tmp_path: Path) -> None:
    path, _ = _qwen3(tmp_path, ("good", "bad"))
    with pytest.raises(UnsupportedModel, match="for good, bad is not served; rows for yes and no"):
        prepare(str(path), cache_dir=str(tmp_path))
