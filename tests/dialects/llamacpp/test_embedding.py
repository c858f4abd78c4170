"""llama-server's /embedding, beside /v1/embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testing.pooling_models import save
from tests.gateway.pooling.pooling_engine import pooling_gateway
from tests.worker.pooling.late_models import SIZES, late_tokenizer

TEXTS = ["w50 w51 . w70", "w80"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed") / "m"
    save(folder, "BertModel", **SIZES)
    late_tokenizer(folder)
    return folder


async def test_vectors_are_those_of_openais_api(embedder: Path, tmp_path: Path) -> None:
    async with pooling_gateway(embedder, tmp_path) as client:

        async def vectors(normalize: bool) -> list[list[float]]:
            body = {"input": TEXTS, "normalize": normalize}
            data = (await client.post("/v1/embeddings", json=body)).json()["data"]
            return [each["embedding"] for each in data]

        async def own(path: str = "/embedding", **body: Any) -> Any:
            reply = await client.post(path, json=body)
            assert reply.status_code == 200, reply.text
            return reply.json()

        async def vector_of(ids: list[int]) -> list[float]:
            body = {"input": ids, "normalize": True}
            data = (await client.post("/v1/embeddings", json=body)).json()["data"]
            found: list[float] = data[0]["embedding"]
            return found

        unit, plain = await vectors(normalize=True), await vectors(normalize=False)
        assert unit != plain
        wanted = [{"index": i, "embedding": [each]} for i, each in enumerate(unit)]
        assert await own(content=TEXTS) == wanted
        assert await own("/embeddings", input=TEXTS, embd_normalize=2) == wanted
        assert await own(content=[TEXTS[0], {"prompt_string": TEXTS[1]}]) == wanted
        assert await own(content={"prompt_string": TEXTS[0]}) == wanted[:1]
        assert await own(content=TEXTS[0]) == wanted[:1]
        raw = await own(content=TEXTS, embd_normalize=-1)
        assert [each["embedding"] for each in raw] == [[each] for each in plain]
        both = {"input": [TEXTS[1], [5, 6]], "normalize": True}
        mixed = (await client.post("/v1/embeddings", json=both)).json()["data"]
        assert [each["embedding"] for each in mixed] == [unit[1], (await vector_of([5, 6]))]
        assert [each["embedding"][0] for each in await own(content=both["input"])] == [
            each["embedding"] for each in mixed
        ]


WRONG = [
    ({}, "content", "either content or input"),
    ({"content": "a", "input": "a"}, "content", "either content or input"),
    ({"content": "a", "embd_normalize": 1}, "embd_normalize", "allowed: 2"),
    ({"content": []}, "content", "content has 0 entries"),
    (
        {"content": {"prompt_string": "a", "multimodal_data": ["AAAA"]}},
        "content.multimodal_data",
        "/v1/embeddings",
    ),
]


async def test_a_wrong_embedding_body_is_a_400_that_names_its_field(
    embedder: Path, tmp_path: Path
) -> None:
    async with pooling_gateway(embedder, tmp_path) as client:
        for body, param, said in WRONG:
            reply = await client.post("/embedding", json=body)
            assert reply.status_code == 400, reply.text
            error = reply.json()["error"]
            assert error["param"] == param
            assert said in error["message"]
