"""DeBERTa over HTTP, against transformers: a prompt guard, NLI and a cross-encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from testing.pooling_models import DEBERTA, save
from tests.gateway.pooling.pooling_engine import pooling_gateway
from tests.gateway.pooling.spaced_tokenizer import spaced_tokenizer
from tests.worker.pooling.late_models import SIZES

TEXTS = ["w40 w41 w42", "w50", "w9 w80 w80 w12 w33"]
GUARD = ("BENIGN", "INJECTION")
NLI = ("entailment", "neutral", "contradiction")


def _saved(folder: Path, labels: tuple[str, ...]) -> Any:
    settings = {**DEBERTA, "id2label": dict(enumerate(labels))}
    model = save(folder, "DebertaV2ForSequenceClassification", **SIZES, **settings)
    spaced_tokenizer(folder)
    return model


def _logits(folder: Path, model: Any, *texts: list[str]) -> torch.Tensor:
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), unk_token="[UNK]", **named
    )
    with torch.inference_mode():
        return model(
            **tokenizer(*texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        ).logits


async def test_a_prompt_guard_classifies(tmp_path: Path) -> None:
    model = _saved(tmp_path / "m", GUARD)
    wanted = _logits(tmp_path / "m", model, TEXTS).softmax(1)
    async with pooling_gateway(tmp_path / "m", tmp_path) as client:
        answer = (await client.post("/classify", json={"input": TEXTS})).json()
    for found, probs in zip(answer["data"], wanted, strict=True):
        assert found["label"] == GUARD[int(probs.argmax())]
        assert found["probs"] == pytest.approx(probs.tolist(), abs=1e-4)


async def test_nli_classifies_pairs(tmp_path: Path) -> None:
    model = _saved(tmp_path / "m", NLI)
    pairs = [["w40 w41", "w42"], ["w50", "w9 w9 w10"]]
    wanted = _logits(tmp_path / "m", model, *map(list, zip(*pairs, strict=True))).softmax(1)
    async with pooling_gateway(tmp_path / "m", tmp_path) as client:
        answer = (await client.post("/predict", json={"inputs": pairs})).json()
    for found, probs in zip(answer, wanted, strict=True):
        scores = {each["label"]: each["score"] for each in found}
        assert [scores[label] for label in NLI] == pytest.approx(probs.tolist(), abs=1e-4)


async def test_a_cross_encoder_scores(tmp_path: Path) -> None:
    model = _saved(tmp_path / "m", ("LABEL_0",))
    wanted = _logits(tmp_path / "m", model, ["w40 w41"] * 3, TEXTS).sigmoid()[:, 0]
    async with pooling_gateway(tmp_path / "m", tmp_path) as client:
        body = {"text_1": "w40 w41", "text_2": TEXTS}
        answer = (await client.post("/score", json=body)).json()
    found = [each["score"] for each in answer["data"]]
    assert found == pytest.approx(wanted.tolist(), abs=1e-4)
