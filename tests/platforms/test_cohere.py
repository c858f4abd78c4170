"""POST /v2/embed beside /v1/embeddings, whose vectors are compared with transformers elsewhere, and
beside numpy's packing of bits."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.pooling_models import save
from tests.gateway.pooling.pooling_engine import pooling_gateway
from tests.worker.pooling.late_models import SIZES, late_tokenizer

TEXTS = ["w50 w51 . w70", "w80"]
LONG = "w50 " * 90
"""More than the model's 80 tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("embed") / "m"
    save(made, "BertModel", **{**SIZES, "hidden_size": 48, "num_attention_heads": 3})
    late_tokenizer(made)
    return made


async def test_vectors_are_those_of_openais_api(folder: Path, tmp_path: Path) -> None:
    types = ["float", "base64", "binary", "ubinary", "float"]
    async with pooling_gateway(folder, tmp_path) as client:
        wanted = (await client.post("/v1/embeddings", json={"input": TEXTS})).json()
        vectors = [each["embedding"] for each in wanted["data"]]
        body = {"texts": TEXTS, "input_type": "search_document"}
        plain = (await client.post("/v2/embed", json=body)).json()
        assert plain["embeddings"] == {"float": vectors}
        assert plain["texts"] == TEXTS
        tokens = wanted["usage"]["prompt_tokens"]
        assert plain["meta"]["billed_units"] == {"input_tokens": tokens, "image_tokens": 0}
        typed = (await client.post("/v2/embed", json={**body, "embedding_types": types})).json()
        found = typed["embeddings"]
        assert sorted(found) == sorted(set(types))
        assert found["float"] == vectors
        for vector, text, signed, unsigned in zip(
            vectors, found["base64"], found["binary"], found["ubinary"], strict=True
        ):
            assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == vector
            packed = np.packbits(np.array(vector) > 0).astype(int)
            assert unsigned == packed.tolist()
            assert signed == (packed - 128).tolist()
        contents = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
        mixed = (await client.post("/v2/embed", json={"inputs": contents})).json()
        assert mixed["embeddings"] == {"float": vectors}
        assert mixed["texts"] == []


async def test_vectors_and_texts_are_cut(folder: Path, tmp_path: Path) -> None:
    async with pooling_gateway(folder, tmp_path) as client:

        async def both(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
            one = (await client.post("/v2/embed", json=ours)).json()
            other = (await client.post("/v1/embeddings", json=theirs)).json()
            assert one["embeddings"]["float"] == [each["embedding"] for each in other["data"]]

        await both({"texts": TEXTS, "output_dimension": 16}, {"input": TEXTS, "dimensions": 16})
        for cut in ({}, {"truncate": "END"}):
            await both({"texts": [LONG], **cut}, {"input": LONG, "truncate_prompt_tokens": -1})
        last = {"input": f"w60 {LONG}w70", "truncate_prompt_tokens": -1, "truncation_side": "left"}
        await both({"texts": [last["input"]], "truncate": "START"}, last)
        cut_to_nine = {"input": LONG, "truncate_prompt_tokens": 9}
        await both({"texts": [LONG], "max_tokens": 9}, cut_to_nine)
        await both({"texts": [LONG], "truncate_prompt_tokens": 9}, cut_to_nine)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "none of texts, images and inputs are given", "texts"),
    ({"texts": ["w50"], "images": ["data:,"]}, "texts and images of", "texts"),
    ({"texts": []}, "1 to 2048", "texts"),
    ({"texts": ["w50", ""]}, "texts[1] is empty", "texts"),
    ({"texts": ["w50"], "embedding_types": ["int8"]}, "float, base64, binary, ubinary",
     "embedding_types"),
    ({"texts": ["w50"], "embedding_types": []}, "one or more of float", "embedding_types"),
    ({"texts": ["w50"], "output_dimension": 49}, "1 to 48, not 49", "output_dimension"),
    ({"texts": ["w50"], "output_dimension": 12, "embedding_types": ["binary"]},
     "need a multiple of 8", "output_dimension"),
    ({"texts": [LONG], "truncate": "NONE"}, "at most 80 (truncate END cuts", "texts"),
    ({"texts": ["w50"], "truncate": "BOTH"}, "'BOTH'; allowed: END, NONE, START", "truncate"),
    ({"texts": ["w50"], "truncate": "NONE", "max_tokens": 5}, "cuts nothing", "max_tokens"),
    ({"texts": ["w50"], "max_tokens": 0}, "max_tokens is 0", "max_tokens"),
    ({"texts": ["w50"], "max_tokens": 9, "truncate_prompt_tokens": 9}, "allowed: one",
     "truncate_prompt_tokens"),
    ({"texts": ["w50"], "embedding_types": ["x" * 5000]}, 'xxx…; allowed are', "embedding_types"),
    ({"images": ["data:image/png;base64,AAAA"]}, "no picture is an input", "model"),
    ({"texts": ["w50"], "input_type": "query"}, "search_document, search_query", "input_type"),
]  # fmt: skip


async def test_wrong_requests_are_told_what_is_allowed(folder: Path, tmp_path: Path) -> None:
    async with pooling_gateway(folder, tmp_path) as client:
        for body, words, param in WRONG:
            answer = await client.post("/v2/embed", json=body)
            error = answer.json()["error"]
            assert answer.status_code == 400, body
            assert words in error["message"], body
            assert error["param"] == param, body
