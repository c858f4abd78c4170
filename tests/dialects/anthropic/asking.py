"""Anthropic's requests, and their answers as they are and as events."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import httpx
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.app import create_app
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import HELLO, MODEL, FakeEngineClient, Script, Step

URL = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
ANSWER = f"{HELLO}0"
KNOWN: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
ARGUMENTS = '{"city": "Zürich 👋"}'
HERMES = (
    f'Let me look.<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
)
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


SOURCE = {"type": "url", "url": "https://e.org/a.png"}
FOUND = {
    "type": "search_result",
    "source": "https://e.org",
    "title": "Rivers",
    "content": [{"type": "text", "text": "The Rhine."}, {"type": "text", "text": "The Po."}],
    "citations": {"enabled": True},
}


def said(text: str, *, finish: str = "stop", stopped_by: str | None = None) -> Script:
    """A script: `text` in pieces of random lengths."""
    dice = random.Random(len(text))
    cuts = [0, *sorted(dice.sample(range(1, len(text)), len(text) // 3)), len(text)]

    def script(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        for start, end in pairwise(cuts):
            yield [SequenceDelta(index=0, text=text[start:end], token_ids=[65] * (end - start))]
        yield [
            SequenceDelta(
                index=0,
                token_ids=[END],
                finish_reason=finish,  # type: ignore[arg-type]
                stop_reason=stopped_by,
            )
        ]

    return script


def budget(tokens: int) -> dict[str, Any]:
    return {"type": "enabled", "budget_tokens": tokens}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 64, "messages": [user("Hi")]} | fields


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def whole(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(URL, json=body(**fields))
    assert response.status_code == 200, response.text
    Message.model_validate(response.json(), strict=True)
    return response.json()


async def events_of(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """Each event's name is its type, and each is one that the SDK knows."""
    response = await http.post(URL, json=body(stream=True, **fields))
    assert response.status_code == 200, response.text
    assert response.text.endswith("\n\n")
    events = []
    for block in response.text[:-2].split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        KNOWN.validate_python(event, strict=True)
        events.append(event)
    return events


def client_of(engine: FakeEngineClient, **config: Any) -> httpx.AsyncClient:
    app = create_app(engine, GatewayConfig(**config))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


async def refusal(http: httpx.AsyncClient, status: int = 400, **fields: Any) -> str:
    response = await http.post(URL, json=body(**fields))
    assert response.status_code == status, response.text
    reply = response.json()
    assert reply["type"] == "error"
    assert response.headers["request-id"] == reply["request_id"]
    return f"{reply['error']['type']}: {reply['error']['message']}"
