"""The format of Text Embeddings Inference, beside the other endpoints' answers, which are compared
with transformers elsewhere, and beside transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from testing.pooling_models import save
from tests.gateway.pooling.pooling_engine import pooling_gateway
from tests.worker.pooling.late_models import SIZES, late_tokenizer

TEXTS = ["w50 w51 . w70", "w80"]
LONG = "w50 " * 90
"""More than the model's 80 tokens."""


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed") / "m"
    save(folder, "BertModel", **SIZES)
    late_tokenizer(folder)
    return folder


@pytest.fixture(scope="module", params=[1, 3], ids=["reranker", "classifier"])
def head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder, and the model that transformers loads from it."""
    folder = tmp_path_factory.mktemp("classes") / "m"
    labels = {place: f"label {place}" for place in range(request.param)}
    model = save(folder, "BertForSequenceClassification", **SIZES, id2label=labels)
    late_tokenizer(folder)
    return folder, model


def logits(head: Any, *texts: str) -> list[float]:
    """What transformers makes of a text, or a pair."""
    folder, model = head
    read = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(*texts)
    with torch.inference_mode():
        ids, types = torch.tensor([read.ids]), torch.tensor([read.type_ids])
        found: list[float] = model(ids, token_type_ids=types).logits[0].tolist()
    return found


async def test_vectors_are_those_of_openais_api(embedder: Path, tmp_path: Path) -> None:
    async with pooling_gateway(embedder, tmp_path) as client:
        wanted = (await client.post("/v1/embeddings", json={"input": TEXTS})).json()
        unit = {"input": TEXTS, "normalize": True}
        unit = (await client.post("/v1/embeddings", json=unit)).json()
        body = {"inputs": TEXTS, "truncate": True, "prompt_name": None}
        found = (await client.post("/embed", json=body)).json()
        assert found == [each["embedding"] for each in unit["data"]]
        plain = (await client.post("/embed", json={**body, "normalize": False})).json()
        assert plain == [each["embedding"] for each in wanted["data"]]
        short = (await client.post("/embed", json={"inputs": TEXTS[0], "dimensions": 8})).json()
        cut = {"input": TEXTS[0], "dimensions": 8, "normalize": True}
        cut = (await client.post("/v1/embeddings", json=cut)).json()
        assert short == [cut["data"][0]["embedding"]]
        rows = {"input": TEXTS, "task": "token_embed", "normalize": False}
        rows = (await client.post("/pooling", json=rows)).json()
        found = (await client.post("/embed_all", json={"inputs": TEXTS})).json()
        assert found == [each["data"] for each in rows["data"]]
        inputs = {"source_sentence": TEXTS[0], "sentences": [*TEXTS, "w60"]}
        parameters = {"truncate": True, "truncation_direction": "Right"}
        body = {"inputs": inputs, "parameters": parameters}
        found = (await client.post("/similarity", json=body)).json()
        scored = {"text_1": TEXTS[0], "text_2": [*TEXTS, "w60"]}
        scored = (await client.post("/score", json=scored)).json()
        assert found == [each["score"] for each in scored["data"]]


async def test_texts_are_cut_where_that_is_asked_for(embedder: Path, tmp_path: Path) -> None:
    async with pooling_gateway(embedder, tmp_path) as client:
        cut = await client.post("/embed", json={"inputs": LONG, "truncate": True})
        wanted = {"input": LONG, "truncate_prompt_tokens": -1, "normalize": True}
        wanted = (await client.post("/v1/embeddings", json=wanted)).json()
        assert cut.json() == [wanted["data"][0]["embedding"]]
        ends = f"w60 {LONG} w70"
        left = {"inputs": ends, "truncate": True, "truncation_direction": "Left"}
        cut = await client.post("/embed", json=left)
        wanted = {"input": ends, "truncate_prompt_tokens": -1, "truncation_side": "left"}
        wanted = (await client.post("/v1/embeddings", json=wanted | {"normalize": True})).json()
        assert cut.json() == [wanted["data"][0]["embedding"]]
        query = {"query": "w50", "texts": [LONG], "truncate": True}
        assert (await client.post("/rerank", json=query)).status_code == 200


async def test_classes_are_those_of_transformers(head: Any, tmp_path: Path) -> None:
    async with pooling_gateway(head[0], tmp_path) as client:
        pairs = [["w50"], ["w60", "w61 w62"]]
        for inputs in ("w50", ["w50"], ["w50", "w51"], pairs):
            body = {"inputs": inputs, "raw_scores": True}
            answer = (await client.post("/predict", json=body)).json()
            given = pairs if inputs is pairs else [[inputs] if isinstance(inputs, str) else inputs]
            found = answer if inputs is pairs else [answer]
            for texts, labels in zip(given, found, strict=True):
                wanted = logits(head, *texts)
                order = sorted(range(len(wanted)), key=lambda place: -wanted[place])
                assert [each["label"] for each in labels] == [f"label {at}" for at in order]
                for each, at in zip(labels, order, strict=True):
                    assert abs(each["score"] - wanted[at]) < 1e-4
        scored = (await client.post("/predict", json={"inputs": "w50"})).json()
        classes = (await client.post("/classify", json={"input": "w50"})).json()
        assert [each["score"] for each in scored] == sorted(
            classes["data"][0]["probs"], reverse=True
        )
        if len(scored) == 1:  # A model of several classes ranks nothing.
            body = {"query": "w50", "texts": TEXTS, "raw_scores": True}
            for each in (await client.post("/rerank", json=body)).json():
                (own,) = logits(head, "w50", TEXTS[each["index"]])
                assert abs(each["score"] - own) < 1e-4
        info = (await client.get("/info")).json()
        labels = head[1].config.id2label
        kind = "reranker" if len(labels) == 1 else "classifier"
        known = info["model_type"][kind]
        assert known["id2label"] == {str(place): label for place, label in labels.items()}
        assert known["label2id"] == {label: place for place, label in labels.items()}


async def test_ranks_are_those_of_the_other_format(embedder: Path, tmp_path: Path) -> None:
    texts = ["w51", "w50 w51 . w70", "w80"]
    async with pooling_gateway(embedder, tmp_path) as client:
        wanted = (await client.post("/rerank", json={"query": "w80", "documents": texts})).json()
        for path in ("/rerank", "/reranking", "/v1/reranking"):
            body = {"query": "w80", "texts": texts, "return_text": True, "raw_scores": False}
            found = (await client.post(path, json=body)).json()
            assert found == [
                {
                    "index": each["index"],
                    "score": each["relevance_score"],
                    "text": each["document"]["text"],
                }
                for each in wanted["results"]
            ]
        body = {"query": "w80", "texts": texts, "top_n": 1}
        best = (await client.post("/rerank", json=body)).json()
        assert best == [{"index": 2, "score": found[0]["score"]}]
        info = (await client.get("/info")).json()
        assert info["model_type"] == {"embedding": {"pooling": "mean"}}
        assert info["max_input_length"] == 80


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/embed", {"inputs": LONG}, "this model takes at most 80"),
    ("/embed", {"inputs": []}, "inputs has 0 entries"),
    ("/embed", {"inputs": ["w50", ""]}, "inputs[1] is empty"),
    ("/embed", {"inputs": "w50", "prompt_name": "query"}, 'prompt_name is "query"; allowed: none'),
    ("/embed", {"inputs": "w50", "truncation_direction": "both"}, "allowed: Left, Right, left"),
    ("/embed", {"inputs": "w50", "dimensions": 0}, "dimensions"),
    ("/predict", {"inputs": "w50"}, "this model supports embed"),
    ("/rerank", {"query": "w50"}, "one of documents and texts must be given, not neither"),
    ("/rerank", {"query": "w50", "texts": ["w51"], "documents": ["w51"]}, "not both"),
    ("/rerank", {"query": "w50", "texts": []}, "texts has 0 entries"),
    ("/rerank", {"query": "w50", "documents": ["w51"], "raw_scores": True}, "use_activation"),
    ("/similarity", {"inputs": {"source_sentence": "w50", "sentences": []}}, "0 entries"),
]


async def test_a_wrong_tei_request_is_an_error_that_says_why(
    embedder: Path, tmp_path: Path
) -> None:
    async with pooling_gateway(embedder, tmp_path) as client:
        for path, body, said in WRONG:
            reply = await client.post(path, json=body)
            assert reply.status_code == 400, (path, body, reply.text)
            assert said in reply.json()["error"]["message"]


async def test_what_is_no_sequence_is_refused(head: Any, tmp_path: Path) -> None:
    async with pooling_gateway(head[0], tmp_path) as client:
        for inputs, said in (
            (["a", "b", "c"], "inputs has 3 texts"),
            ([["a", "b", "c"]], "inputs[0] has 3 texts"),
            ([["a"], []], "inputs[1] has 0 texts"),
            (["a", ["b"]], "inputs mixes texts and lists"),
            ([], "inputs has 0 entries"),
            ([["a", ""]], "inputs[0] has an empty text"),
        ):
            reply = await client.post("/predict", json={"inputs": inputs})
            assert reply.status_code == 400, (inputs, reply.text)
            assert said in reply.json()["error"]["message"]


async def test_reranking_with_coheres_fields(embedder: Path, tmp_path: Path) -> None:
    """Texts of so many tokens are ranked as those that lost their end."""
    texts = ["w50 w51 w70 w80", "w80", "w60 w61 w62"]
    async with pooling_gateway(embedder, tmp_path) as client:

        async def scores(documents: list[str], **more: object) -> list[tuple[int, float]]:
            body = {"query": "w50", "documents": documents, **more}
            reply = await client.post("/v2/rerank", json=body)
            assert reply.status_code == 200, reply.text
            found = reply.json()["results"]
            return [(each["index"], each["relevance_score"]) for each in found]

        cohere = {"max_tokens_per_doc": 2, "rank_fields": ["text"], "max_chunks_per_doc": 10}
        assert await scores(texts, **cohere) == await scores(["w50 w51", "w80", "w60 w61"])
        assert await scores(texts, max_tokens_per_doc=4096) == await scores(texts)
        body = {"query": "w50", "documents": texts, "max_tokens_per_doc": 0}
        assert (await client.post("/v2/rerank", json=body)).status_code == 400


PROMPTS = {"query": "w10 w11 ", "passage": "w12 ", "empty": ""}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompted") / "m"
    save(folder, "BertModel", **SIZES)
    late_tokenizer(folder)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    return folder


@pytest.mark.parametrize(
    ("said", "prompt"),
    [
        ({"prompt_name": "query"}, "query"),
        ({"task": "retrieval.query"}, "query"),
        ({"task": "retrieval.passage"}, "passage"),
        ({"input_type": "search_document"}, "passage"),
        ({"input_type": "passage", "task": "passage"}, "passage"),
        ({"input_type": "clustering"}, "empty"),
        ({}, "empty"),
    ],
)
async def test_prompts_of_the_models_files(
    prompted: Path, tmp_path: Path, said: dict[str, str], prompt: str
) -> None:
    """Against the same texts with the prompt in front."""
    async with pooling_gateway(prompted, tmp_path) as client:

        async def vectors(texts: list[str], **more: str) -> list[list[float]]:
            reply = await client.post("/v1/embeddings", json={"input": texts, **more})
            assert reply.status_code == 200, reply.text
            return [each["embedding"] for each in reply.json()["data"]]

        wanted = await vectors([PROMPTS[prompt] + each for each in TEXTS])
        assert await vectors(TEXTS, **said) == wanted
        if "prompt_name" in said:
            body = {"inputs": TEXTS, "normalize": False, **said}
            assert (await client.post("/embed", json=body)).json() == wanted
        wrong = {"input": TEXTS, "prompt_name": "none"}
        refused = await client.post("/v1/embeddings", json=wrong)
        assert refused.status_code == 400
        assert "query, passage, empty" in refused.json()["error"]["message"]
