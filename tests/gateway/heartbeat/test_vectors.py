"""However many numbers a reply holds, the event loop stands still for no more than 50 ms while it
is written, and it says what it says when it is written at once."""

from __future__ import annotations

import base64
import json
import random
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from penstock.client.pool_request import PoolResult
from penstock.protocol.common import Pooling, Vectors
from tests.gateway.heartbeat.beaten import BeatenGateway, beaten
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.heartbeat.engines import PoolingEngine

pytestmark = pytest.mark.timeout(300)

INPUTS, ROWS, SIZE = 2048, 8192, 512
SMALL = 37
NUMBERS = array("f", (random.Random(1).uniform(-1, 1) for _ in range(SIZE * 8)))
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a vector for each input": ("/v1/embeddings", {"input": [[97]] * INPUTS}),
    "the same in base64": (
        "/v1/embeddings",
        {"input": [[97]] * INPUTS, "encoding_format": "base64"},
    ),
    "one for each token": ("/pooling", {"input": [97] * ROWS, "task": "token_embed"}),
    "the same in base64 ": (
        "/pooling",
        {"input": [97] * ROWS, "task": "token_embed", "encoding_format": "base64"},
    ),
    "Ollama's": ("/api/embed", {"input": ["a"] * INPUTS}),
}


class VectorEngine(PoolingEngine):
    """Gives the same numbers again and again, rows of `size` for token_embed."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.welcome = msgspec.structs.replace(self.welcome, pooling_tasks=("embed", "token_embed"))

    async def pool(
        self, prompt_token_ids: list[int], pooling: Pooling, **others: Any
    ) -> PoolResult:
        count = len(prompt_token_ids)
        if pooling.task != "token_embed":
            return PoolResult(Vectors((self.size,), NUMBERS[: self.size].tobytes()), count)
        row = NUMBERS[: self.size].tobytes()
        return PoolResult(Vectors((count, self.size), row * count), count)


@pytest.fixture(scope="module")
def large() -> Iterator[BeatenGateway]:
    with collecting_as_a_gateway(), beaten(VectorEngine(SIZE)) as found:
        yield found


@pytest.fixture(scope="module")
def small() -> Iterator[BeatenGateway]:
    with beaten(VectorEngine(SMALL)) as found:
        yield found


def answer(gateway: BeatenGateway, path: str, body: dict[str, Any]) -> bytes:
    status, found = gateway.answer(path, json.dumps(body).encode())
    assert status == 200, found[:1000]
    return found


@pytest.mark.parametrize("case", CASES)
def test_many_numbers_hold_nothing_up(large: BeatenGateway, case: str) -> None:
    path, body = CASES[case]
    found, late = large.watched(lambda: answer(large, path, body))
    assert len(found) > 4 * SIZE * INPUTS
    assert late <= latest()


@pytest.mark.parametrize("case", CASES)
def test_they_are_what_they_are_at_once(small: BeatenGateway, case: str) -> None:
    path, body = CASES[case]
    reply = json.loads(answer(small, path, {**body, "input": body["input"][:5]}))
    row = NUMBERS[:SMALL].tolist()
    if path == "/api/embed":
        assert reply["embeddings"] == [row] * 5
        return
    key = "embedding" if path == "/v1/embeddings" else "data"
    found = [each[key] for each in reply["data"]]
    whole = [row] * 5 if path == "/v1/embeddings" else [[row] * 5]
    if "encoding_format" in body:
        found = [numbers_of(each) for each in found]
        whole = [row] * 5 if path == "/v1/embeddings" else [row * 5]
    assert found == whole
    assert [each["index"] for each in reply["data"]] == list(range(len(found)))


def numbers_of(text: str) -> list[float]:
    return array("f", base64.b64decode(text, validate=True)).tolist()
