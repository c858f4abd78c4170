"""/tokenize of `inputs` and /decode, as Text Embeddings Inference and Text Generation Inference
have them, beside the tokenizers library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

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


def expected(folder: Path, text: str) -> list[dict[str, Any]]:
    """What the library makes of a text."""
    read = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text)
    parts = zip(read.ids, read.tokens, read.special_tokens_mask, read.offsets, strict=True)
    return [
        {"id": id, "text": token, "special": True, "start": None, "stop": None}
        if special
        else {
            "id": id,
            "text": text[slice(*place)],
            "special": False,
            "start": place[0],
            "stop": place[1],
        }
        for id, token, special, place in parts
    ]


async def test_tokens_have_their_places(embedder: Path, tmp_path: Path) -> None:
    wanted = [expected(embedder, text) for text in TEXTS]
    assert [each["special"] for each in wanted[0]] == [True, *[False] * 4, True]
    async with pooling_gateway(embedder, tmp_path) as client:
        found = (await client.post("/tokenize", json={"inputs": TEXTS})).json()
        assert found == wanted
        found = (await client.post("/tokenize", json={"inputs": TEXTS[0]})).json()
        assert found == wanted[:1]
        plain = {"inputs": TEXTS, "add_special_tokens": False}
        found = (await client.post("/tokenize", json=plain)).json()
        assert found == [each[1:-1] for each in wanted]


async def test_ids_become_texts(embedder: Path, tmp_path: Path) -> None:
    read = [[each["id"] for each in expected(embedder, text)] for text in TEXTS]
    own = Tokenizer.from_file(str(embedder / "tokenizer.json"))
    async with pooling_gateway(embedder, tmp_path) as client:
        found = (await client.post("/decode", json={"ids": read})).json()
        assert found == [own.decode(ids[1:-1]) for ids in read] == TEXTS
        found = (await client.post("/decode", json={"ids": read[0]})).json()
        assert found == TEXTS[:1]
        whole = {"ids": read, "skip_special_tokens": False}
        found = (await client.post("/decode", json=whole)).json()
        assert found == [own.decode(ids) for ids in read]


async def test_wrong_requests_are_refused(embedder: Path, tmp_path: Path) -> None:
    async with pooling_gateway(embedder, tmp_path) as client:
        for path, body, said in (
            ("/tokenize", {"inputs": "w50", "prompt": "w50"}, "prompt is not allowed with inputs"),
            ("/tokenize", {"prompt": "w50", "prompt_name": "q"}, "only with inputs"),
            ("/tokenize", {"inputs": "w50", "prompt_name": "q"}, "allowed: none, as the model"),
            ("/tokenize", {"inputs": []}, "inputs has 0 entries"),
            ("/tokenize", {"inputs": "w50 " * 60_000}, "characters"),
            ("/decode", {"ids": [1, [2]]}, "mixes"),
            ("/decode", {"ids": [9_999_999]}, "ids"),
        ):
            reply = await client.post(path, json=body)
            assert (reply.status_code, said in reply.text) == (400, True), reply.text


async def test_many_tokens_are_refused(
    embedder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_gateway.tokenize.located.MOST_TOKENS", 9)
    async with pooling_gateway(embedder, tmp_path) as client:
        assert (await client.post("/tokenize", json={"inputs": TEXTS})).status_code == 200
        reply = await client.post("/tokenize", json={"inputs": [*TEXTS, "w60"]})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "inputs")
