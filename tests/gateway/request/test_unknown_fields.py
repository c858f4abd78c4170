"""--unknown-fields ignore: what no endpoint knows is skipped, wherever it stands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.chat.endpoint import ChatRequest
from penstock_gateway.completions.endpoint import CompletionRequest
from penstock_gateway.pooling.rerank import RerankRequest
from penstock_gateway.request.skipping import skipping
from penstock_gateway.responses.request import ResponsesRequest
from penstock_gateway.tokenize.endpoint import TokenizeRequest
from tests.gateway.fake_engine import FakeEngineClient

CHAT = "/v1/chat/completions"
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
BODIES: list[tuple[Any, dict[str, Any]]] = [
    (
        ChatRequest,
        {
            "messages": [MESSAGE],
            "temperature": 0.5,
            "stream_options": {"include_usage": True},
            "response_format": {"type": "json_schema", "json_schema": {"name": "n"}},
            "structured_outputs": {"regex": "a"},
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "f"}}]},
            },
            "logit_bias": {"5": 1.0},
        },
    ),
    (CompletionRequest, {"prompt": ["a"], "n": 2, "stop": ["x"]}),
    (
        ResponsesRequest,
        {
            "input": [MESSAGE],
            "text": {"format": {"type": "text"}, "verbosity": "low"},
            "reasoning": {"effort": "low"},
            "tool_choice": {"type": "function", "name": "f"},
        },
    ),
    (TokenizeRequest, {"messages": [MESSAGE]}),
    (RerankRequest, {"query": "a", "documents": [{"text": "b"}]}),
]
FREE = ("logit_bias",)
"""Objects whose keys are no fields."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Places of every object in a body."""
    if isinstance(value, dict):
        here = [] if path[-1:] and path[-1] in FREE else [path]
        return here + [p for key, item in value.items() for p in places(item, (*path, key))]
    if isinstance(value, list):
        return [p for at, item in enumerate(value) for p in places(item, (*path, at))]
    return []


def with_unknown(body: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    changed = json.loads(json.dumps(body))
    at = changed
    for step in path:
        at = at[step]
    at["mirostat"] = {"tau": [5]}
    return changed


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_they_are_skipped_at_any_depth(kind: Any, body: dict[str, Any]) -> None:
    plain = msgspec.convert(body, kind)
    for path in places(body):
        made = msgspec.convert(with_unknown(body, path), skipping(kind))
        assert isinstance(made, kind)
        assert msgspec.to_builtins(made) == msgspec.to_builtins(plain), path
    with pytest.raises(msgspec.ValidationError, match="unknown field `mirostat`"):
        msgspec.convert(with_unknown(body, ()), kind)


@pytest.fixture
async def lenient(engine: FakeEngineClient) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(engine, GatewayConfig(unknown_fields="ignore"))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def test_the_answer_is_as_without_them(
    lenient: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    body = {"messages": [MESSAGE], "seed": 5, "response_format": {"type": "json_object"}}
    for path in [None, *places(body)]:
        sent = body if path is None else with_unknown(body, path)
        assert (await lenient.post(CHAT, json=sent)).status_code == 200
    first, *others = ((prompt, params) for prompt, params, _ in engine.submitted)
    assert others == [first] * len(places(body))


async def test_known_fields_are_checked_all_the_same(lenient: httpx.AsyncClient) -> None:
    for fields, param in (({"temperature": "hot"}, "temperature"), ({"n": 0}, "n")):
        response = await lenient.post(CHAT, json={"messages": [MESSAGE], "x": 1} | fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("name", ["x", ""])
async def test_what_ollama_skips_has_to_be_json_too(http: httpx.AsyncClient, name: str) -> None:
    """Half of a surrogate pair is no text."""
    halved = f'{{"{name}": "\\ud800"}}'
    answer = await http.post(
        "/api/chat", content=halved, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert "surrogate" in answer.text


async def test_the_document_says_what_is_so(
    http: httpx.AsyncClient, lenient: httpx.AsyncClient
) -> None:
    strict, skips = [(await each.get("/openapi.json")).json() for each in (http, lenient)]
    name = strict["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert name == {"$ref": "#/components/schemas/ChatRequest"}
    body = strict["components"]["schemas"]["ChatRequest"]
    assert body.pop("additionalProperties") is False
    assert skips["components"]["schemas"]["ChatRequest"] == body
