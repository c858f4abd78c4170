"""What is scored is counted before anything is made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.pooling import scored, scoring
from penstock_gateway.request.input_texts import MAX_INPUTS
from tests.gateway.heartbeat.engines import PoolingEngine

TEXT = {"type": "text", "text": "a"}


@pytest.fixture
async def encoder() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway with a cross-encoder."""
    app = create_app(PoolingEngine("relevant"), GatewayConfig())  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many inputs were made of a body, and how often parts of one were read."""
    counts: Counter[str] = Counter()
    filled, read = scored._filled, scored.Scored._read

    def counted_filled(*given: Any, **named: Any) -> scored.Scored:
        counts["made"] += 1
        return filled(*given, **named)

    def counted_read(self: scored.Scored) -> Any:
        counts["parts"] += len(self.parts)
        return read(self)

    monkeypatch.setattr(scored, "_filled", counted_filled)
    monkeypatch.setattr(scored.Scored, "_read", counted_read)
    return counts


async def refused(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {"query": "a", "documents": ["a"] * (MAX_INPUTS + 1)}, "documents"),
        ("/score", {"text_1": "a", "text_2": ["a"] * (MAX_INPUTS + 1)}, "text_2"),
        ("/score", {"text_1": ["a"] * (MAX_INPUTS + 1), "text_2": "a"}, "text_1"),
        ("/rerank", {"query": "a", "documents": {"content": [TEXT] * (MAX_INPUTS + 1)}}, None),
        ("/rerank", {"query": {"content": [TEXT] * (MAX_INPUTS + 1)}, "documents": ["a"]}, None),
        ("/rerank", {"query": "a", "documents": [{"content": [TEXT] * 2000}] * 9}, "documents"),
    ],
)
async def test_too_many_are_counted_and_not_made(
    encoder: httpx.AsyncClient,
    made: Counter[str],
    path: str,
    body: dict[str, Any],
    param: str | None,
) -> None:
    error = await refused(encoder, path, body)
    assert error["param"] == param or param is None
    assert "are allowed" in error["message"]
    assert made["made"] <= 1


@pytest.mark.usefixtures("prepared_here")
async def test_parts_of_a_query_are_read_once_for_all_documents(
    encoder: httpx.AsyncClient, made: Counter[str]
) -> None:
    query = {"content": [TEXT] * 50}
    answer = await encoder.post("/rerank", json={"query": query, "documents": ["b"] * 40})
    assert answer.status_code == 200, answer.text
    assert made["parts"] == 50 + 40


async def test_parts_times_documents_are_bounded(
    encoder: httpx.AsyncClient, made: Counter[str]
) -> None:
    query = {"content": [TEXT] * MAX_INPUTS}
    error = await refused(encoder, "/rerank", {"query": query, "documents": ["b"] * MAX_INPUTS})
    assert error["param"] == "query"
    assert (
        f"{MAX_INPUTS * (MAX_INPUTS + 1)} parts together, {MAX_INPUTS} of them in query"
        in (error["message"])
    )
    assert str(scoring.MAX_PAIRED_PARTS) in error["message"]
    assert not made["parts"]
