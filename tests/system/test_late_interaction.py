"""A model for late interaction, served: vectors of tokens, scores, and a worker's death."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import LLM, PoolingParams
from testing.serving import Server, wait_until
from tests.worker.pooling.late_models import SPECIAL, expected, save_late

pytestmark = [pytest.mark.timeout(600)]

QUERY = "w50 w51 ."
DOCUMENTS = ["w60 , w50 w51 !", "w70 w71 w72 w73", "w51 w80 ."]


class Model:
    """transformers' model, with what pylate does to texts."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.model, self.weight = save_late(folder)

    def query(self, text: str) -> np.ndarray:
        ids = self._ids(text, "[unused0]")
        return self._vectors(ids + [SPECIAL.index("[MASK]")] * (12 - len(ids)), len(ids))

    def document(self, text: str) -> np.ndarray:
        ids = self._ids(text, "[unused1]")
        return self._vectors(ids)[[token < 6 or token >= len(SPECIAL) for token in ids]]

    def scores(self, query: str) -> list[float]:
        return [
            float((self.query(query) @ self.document(text).T).max(1).sum()) for text in DOCUMENTS
        ]

    def _ids(self, text: str, prefix: str) -> list[int]:
        words = ["[CLS]", prefix, *text.split(), "[SEP]"]
        return [SPECIAL.index(word) if word in SPECIAL else int(word[1:]) for word in words]

    def _vectors(self, ids: list[int], seen: int = 0) -> np.ndarray:
        return expected(self.model, self.weight, ids, seen)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    torch.manual_seed(5)
    return Model(tmp_path_factory.mktemp("late") / "m")


@pytest.fixture(scope="module")
def served(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(model.folder, "--cache-dir", str(tmp_path_factory.mktemp("cache")))
    try:
        yield running
    finally:
        running.close()


def _pooled(server: Server, **body: Any) -> list[Any]:
    status, answer = server.post("/pooling", body)
    assert status == 200, answer
    return [each["data"] for each in answer["data"]]


def test_vectors_of_queries_and_documents(served: Server, model: Model) -> None:
    (found,) = _pooled(served, input=QUERY, input_type="query")
    assert np.abs(np.array(found) - model.query(QUERY)).max() < 1e-5
    for text, vectors in zip(DOCUMENTS, _pooled(served, input=DOCUMENTS), strict=True):
        assert np.abs(np.array(vectors) - model.document(text)).max() < 1e-5


def test_scores_and_ranks_are_those_of_late_interaction(served: Server, model: Model) -> None:
    wanted = model.scores(QUERY)
    status, answer = served.post("/v1/score", {"queries": QUERY, "documents": DOCUMENTS})
    assert status == 200, answer
    found = [each["score"] for each in answer["data"]]
    assert np.abs(np.array(found) - wanted).max() < 1e-4
    status, answer = served.post("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS})
    assert status == 200, answer
    order = sorted(range(3), key=lambda index: -wanted[index])
    assert [each["index"] for each in answer["results"]] == order
    assert [each["relevance_score"] for each in answer["results"]] == [found[i] for i in order]


def test_what_the_model_does_not_do_is_said(served: Server) -> None:
    status, answer = served.post("/v1/embeddings", {"input": "w50"})
    assert status == 400
    assert "task is embed; this model supports token_embed" in answer["error"]["message"]


def test_a_death_under_load_changes_no_bit(served: Server) -> None:
    inputs = [f"{DOCUMENTS[n % 3]} w{40 + n}" for n in range(40)]
    body = {"input": inputs, "encoding_format": "base64"}
    undisturbed = [_pooled(served, **body), _pooled(served, **body, input_type="query")]
    answers: list[Any] = []

    def ask() -> None:
        answers.append([_pooled(served, **body), _pooled(served, **body, input_type="query")])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: answers or served.get("/status")[1]["gateway"]["open_requests"])
    os.kill(served.child("worker 0"), signal.SIGKILL)
    for thread in threads:
        thread.join(300)
    assert answers == [undisturbed] * 4
    assert _pooled(served, **{**body, "input": inputs[7]}) == undisturbed[0][7:8]


@pytest.mark.long
def test_the_library_gives_the_same(model: Model, tmp_path: Path) -> None:
    with LLM(model.folder, cache_dir=str(tmp_path)) as llm:
        scores = [out.outputs.score for out in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]
        assert np.abs(np.array(scores) - model.scores(QUERY)).max() < 1e-4
        (out,) = llm.encode(QUERY, PoolingParams(input_type="query"), use_tqdm=False)
        assert np.abs(out.outputs.data - model.query(QUERY)).max() < 1e-5
