"""Entities over HTTP, against transformers' pipeline for token classification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.client.entities import ClassifiedToken, Entity, entities_of
from testing.pooling_models import DEBERTA, save
from tests.gateway.pooling.pooling_engine import pooling_gateway
from tests.gateway.pooling.spaced_tokenizer import spaced_tokenizer
from tests.worker.pooling.late_models import SIZES, late_tokenizer

LABELS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG")
TEXTS = [" ".join(f"w{40 + (7 * n + step) % 50}" for n in range(24)) for step in (0, 3, 11, 29)] + [
    "ä  w50   w51."
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("entities") / "m"
    labels = dict(enumerate(LABELS))
    save(folder, "BertForTokenClassification", **SIZES, id2label=labels)
    late_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def deberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PII model's kind, whose tokens begin with the space before a word."""
    folder = tmp_path_factory.mktemp("entities") / "m"
    settings = {**DEBERTA, "id2label": dict(enumerate(LABELS))}
    save(folder, "DebertaV2ForTokenClassification", **SIZES, **settings)
    spaced_tokenizer(folder)
    return folder


def _pipeline(folder: Path, strategy: str) -> Any:
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        **json.loads((folder / "tokenizer_config.json").read_text()),
    )
    loaded = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    return transformers.pipeline(
        "token-classification", model=loaded, tokenizer=tokenizer, aggregation_strategy=strategy
    )


@pytest.mark.parametrize("strategy", ["simple", "none"])
async def test_entities_are_those_of_transformers(
    model: Path, tmp_path: Path, strategy: str
) -> None:
    wanted = _pipeline(model, strategy)(TEXTS)
    async with pooling_gateway(model, tmp_path) as client:
        body = {"input": TEXTS, "aggregation_strategy": strategy}
        answer = (await client.post("/classify", json=body)).json()
    assert any(len(each["entities"]) > 2 for each in answer["data"])
    name = "entity_group" if strategy == "simple" else "entity"
    for text, found, theirs in zip(TEXTS, answer["data"], wanted, strict=True):
        same = ("start", "end", name) + (("index",) if strategy == "none" else ())
        ours = found["entities"]
        assert [[one[key] for key in same] for one in ours] == [
            [one[key] for key in same] for one in theirs
        ]
        for one, other in zip(ours, theirs, strict=True):
            assert abs(one["score"] - float(other["score"])) < 1e-4
            assert one["word"] == text[one["start"] : one["end"]]


async def test_entities_of_tokens_that_begin_with_a_space(deberta: Path, tmp_path: Path) -> None:
    texts = TEXTS[:4]
    wanted = _pipeline(deberta, "simple")(texts)
    async with pooling_gateway(deberta, tmp_path) as client:
        answer = (await client.post("/classify", json={"input": texts})).json()
    assert any(len(each["entities"]) > 2 for each in answer["data"])
    same = ("start", "end", "entity_group", "word")
    for found, theirs in zip(answer["data"], wanted, strict=True):
        assert [[one[key] for key in same] for one in found["entities"]] == [
            [one[key] for key in same] for one in theirs
        ]
        for one, other in zip(found["entities"], theirs, strict=True):
            assert abs(one["score"] - float(other["score"])) < 1e-4


async def test_each_tokens_classes_and_what_is_refused(model: Path, tmp_path: Path) -> None:
    async with pooling_gateway(model, tmp_path) as client:
        answer = (await client.post("/pooling", json={"input": "w50 w51"})).json()
        rows = answer["data"][0]["data"]
        assert [len(row) for row in rows] == [5] * 4
        assert all(abs(sum(row) - 1) < 1e-5 for row in rows)
        for body, said in (
            ({"input": [[1, 50, 2]]}, "entities are found in texts"),
            ({"input": "w50", "use_activation": False}, "use_activation is false"),
            ({"input": "w50", "aggregation_strategy": "max"}, "aggregation_strategy"),
        ):
            reply = await client.post("/classify", json=body)
            assert reply.status_code == 400, reply.text
            assert said in reply.json()["error"]["message"]
        cut = {"input": "w50 " * 90, "truncate_prompt_tokens": -1}
        found = (await client.post("/classify", json=cut)).json()["data"][0]["entities"]
        assert all(one["end"] <= 4 * 78 for one in found)


def test_an_entity_ends_where_another_begins() -> None:
    labels = ["B-PER", "I-PER", "B-PER", "I-ORG", "O", "LOC", "LOC"]
    tokens = [ClassifiedToken(n, label, n / 10, n, n + 1) for n, label in enumerate(labels)]
    assert entities_of(tokens) == [
        Entity("PER", 0.05, 0, 2),
        Entity("PER", 0.2, 2, 3),
        Entity("ORG", 0.3, 3, 4),
        Entity("LOC", 0.55, 5, 7),
    ]
    assert entities_of([]) == []
