"""Tools of which the model learns nothing: Ollama's API refuses them as Ollama does, the others
say so."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_gateway.http.notes import HEADER
from tests.gateway.fake_engine import MODEL
from tests.gateway.media import SeeingEngine, SeeingGateway

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]},
    "/v1/responses": {"input": "Hi", "tools": [{"type": "function", "name": "look"}]},
    "/v1/messages": {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 8,
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
    },
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(ASKED))
async def test_a_header_says_so(path: str, stream: bool) -> None:
    async with SeeingGateway(SeeingEngine()) as gateway:
        for tools in (True, False):
            body = {name: each for name, each in ASKED[path].items() if tools or name != "tools"}
            reply = await gateway.client.post(path, json={**body, "stream": stream})
            assert reply.status_code == 200, reply.text
            assert ("does not show tools" in reply.headers.get(HEADER, "")) is tools


@pytest.mark.parametrize("stream", [False, True])
async def test_ollamas_api_refuses_them(stream: bool) -> None:
    body = {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
    async with SeeingGateway(SeeingEngine()) as gateway:
        refused = await gateway.client.post("/api/chat", json={**body, "tools": [TOOL]})
        assert refused.status_code == 400
        assert "does not support tools" in refused.json()["error"]
        assert (await gateway.client.post("/api/chat", json=body)).status_code == 200
        shown = await gateway.client.post("/api/show", json={"model": MODEL})
        assert "tools" not in shown.json()["capabilities"]
