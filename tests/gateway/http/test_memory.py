"""A request for which the gateway has no memory: it alone fails, and is told why."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.fake_engine import MODEL, FakeEngineClient

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
