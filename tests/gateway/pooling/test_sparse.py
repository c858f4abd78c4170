"""Sparse vectors over HTTP, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from testing.pooling_models import save, splade_files
from tests.gateway.pooling.pooling_engine import pooling_gateway
from tests.worker.pooling.late_models import SIZES, SPECIAL, late_tokenizer

TEXTS = ["w50 w51 . w70", "w80"]


class Expected:
    """The weights of words as transformers computes them, by text."""

    def __init__(self, folder: Path) -> None:
        model = save(folder, "BertForMaskedLM", **SIZES)
        splade_files(folder)
        late_tokenizer(folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.weights: dict[str, dict[int, float]] = {}
        for text in TEXTS:
            with torch.inference_mode():
                logits = model(torch.tensor([tokenizer.encode(text).ids])).logits[0]
            weights = torch.log1p(torch.relu(logits)).amax(0)
            own = {int(place): float(weights[place]) for place in weights.nonzero()[:, 0]}
            self.weights[text] = own

    def check(self, text: str, found: list[dict[str, Any]]) -> None:
        wanted = self.weights[text]
        assert [each["index"] for each in found] == sorted(wanted)
        assert all(abs(each["value"] - wanted[each["index"]]) < 5e-5 for each in found)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    folder = tmp_path_factory.mktemp("splade") / "m"
    return folder, Expected(folder)


async def test_texts_are_embedded_sparsely(expected: tuple[Path, Expected], tmp_path: Path) -> None:
    folder, wanted = expected
    async with pooling_gateway(folder, tmp_path) as client:
        answer = (await client.post("/embed_sparse", json={"inputs": TEXTS})).json()
        for text, found in zip(TEXTS, answer, strict=True):
            wanted.check(text, found)
            assert set(found[0]) == {"index", "value"}
        (alone,) = (await client.post("/embed_sparse", json={"inputs": TEXTS[1]})).json()
        assert alone == answer[1]
        pooled = (await client.post("/pooling", json={"input": TEXTS})).json()
        for text, plain, each in zip(TEXTS, answer, pooled["data"], strict=True):
            wanted.check(text, each["data"])
            values = [(one["index"], one["value"]) for one in plain]
            assert [(one["index"], one["value"]) for one in each["data"]] == values
            names = [
                SPECIAL[one["index"]] if one["index"] < len(SPECIAL) else f"w{one['index']}"
                for one in each["data"]
            ]
            assert [one["token"] for one in each["data"]] == names
        assert pooled["usage"]["prompt_tokens"] == 6 + 3


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/embed_sparse", {"inputs": "w50 " * 90}, "this model takes at most 80"),
    ("/embed_sparse", {"inputs": ""}, "inputs[0] is empty"),
    ("/pooling", {"input": "w50", "encoding_format": "base64"}, "sparse vectors are written as"),
    ("/pooling", {"input": "w50", "task": "embed"}, "this model supports embed_sparse"),
    ("/v1/embeddings", {"input": "w50"}, "this model supports embed_sparse"),
    ("/classify", {"input": "w50"}, "this model supports embed_sparse"),
]


async def test_what_the_model_does_not_do_is_said(
    expected: tuple[Path, Expected], tmp_path: Path
) -> None:
    async with pooling_gateway(expected[0], tmp_path) as client:
        for path, body, said in WRONG:
            reply = await client.post(path, json=body)
            assert reply.status_code == 400, reply.text
            assert said in reply.json()["error"]["message"]
        cut = await client.post("/embed_sparse", json={"inputs": "w50 " * 90, "truncate": True})
        assert cut.status_code == 200
