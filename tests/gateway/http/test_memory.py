"""A request for which the gateway has no memory: it alone fails, and is told why."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from uvicorn.protocols.http import httptools_impl

from tests.gateway.fake_engine import MODEL, FakeEngineClient
from tests.gateway.live_gateway import LiveGateway

BODY = {"model": MODEL, "prompt": "abc", "max_tokens": 2}


async def test_a_request_without_memory_is_told_so(
    http: httpx.AsyncClient, engine: FakeEngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(engine, "submit", no_memory)
        answer = await http.post("/v1/completions", json=BODY)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "out_of_memory"
    assert "no memory left for this request" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) > 0
    assert (await http.post("/v1/completions", json=BODY)).status_code == 200


class NoMemory(int):
    """Nothing can be compared with it: there is no memory for that."""

    def __lt__(self, other: int) -> bool:
        raise MemoryError


def test_a_body_without_memory_is_no_fault_of_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was refused as bytes that are no HTTP."""
    with LiveGateway(FakeEngineClient()) as gateway:
        url = f"{gateway.url}/v1/completions"
        with monkeypatch.context() as patch:
            patch.setattr(httptools_impl, "HIGH_WATER_LIMIT", NoMemory())
            answer = httpx.post(url, json=BODY)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "out_of_memory"
        assert answer.json()["error"]["type"] == "server_error"
        assert int(answer.headers["retry-after"]) > 0
        assert httpx.post(url, json=BODY).status_code == 200
