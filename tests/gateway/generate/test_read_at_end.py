"""Which requests the engine is told nobody reads before their end."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.fake_engine import FakeEngineClient

TALK = {"messages": [{"role": "user", "content": "Hi"}]}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "several prompts": ("/v1/completions", {"prompt": ["Hi", "Ho"], "n": 2}),
    "chat": ("/v1/chat/completions", TALK),
    "responses": ("/v1/responses", {"input": "Hi", "store": False}),
    "messages": ("/v1/messages", {**TALK, "max_tokens": 9, "model": "org/tiny-model"}),
    "ollama": ("/api/chat", {**TALK, "model": "org/tiny-model"}),
    "ollama, raw": (
        "/api/generate",
        {"prompt": "Hi", "raw": True, "model": "org/tiny-model"},
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_those_whose_reply_comes_at_once(
    http: httpx.AsyncClient, engine: FakeEngineClient, name: str, stream: bool
) -> None:
    path, body = REQUESTS[name]
    reply = await http.post(path, json={**body, "stream": stream})
    assert reply.status_code == 200, reply.text
    assert engine.read_at_end == [not stream] * (2 if name == "several prompts" else 1)


async def test_the_best_of_several_are_known_at_the_end_only(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    body = {"prompt": "Hi", "best_of": 3, "temperature": 1}
    reply = await http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert engine.read_at_end == [True]
