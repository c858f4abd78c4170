"""The cases of the Open Responses compliance suite that go over HTTP, against its schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.errors import EngineUnavailable
from tests.gateway.batches.storing import storing
from tests.gateway.fake_engine import MODEL, FakeEngineClient, say
from tests.gateway.media import SeeingGateway, data_uri
from tests.gateway.responses.open_responses import check_event, check_response
from tests.gateway.responses.test_responses_tools import THINKS
from tests.gateway.responses.tool_answers import said

URL = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a place",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
HERMES = '<tool_call>{"name": "get_weather", "arguments": {"location": "Rome"}}</tool_call>'


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **more}


async def answered(http: httpx.AsyncClient, input: Any, **fields: Any) -> dict[str, Any]:
    """The reply, whole and as the last event of a stream whose events are all as they should."""
    body = {"model": MODEL, "input": input, **fields}
    streamed = await http.post(URL, json={**body, "stream": True})
    assert streamed.status_code == 200, streamed.text
    events = [
        json.loads(line.removeprefix("data: "))
        for line in streamed.text.split("\n")
        if line.startswith("data: ")
    ]
    for event in events:
        check_event(event)
    reply = await http.post(URL, json={**body, "stream": False})
    assert reply.status_code == 200, reply.text
    response: dict[str, Any] = reply.json()
    check_response(response)
    kinds = [item["type"] for item in response["output"]]
    assert kinds == [item["type"] for item in events[-1]["response"]["output"]]
    return response


MESSAGES: dict[str, list[dict[str, Any]]] = {
    "basic": [message("user", "Say hello in 3 words.")],
    "system prompt": [message("system", "You are a pirate."), message("user", "Say hello.")],
    "several turns": [
        message("user", "My name is Alice."),
        message("assistant", "Hello Alice!"),
        message("user", "What is my name?"),
    ],
    "phases": [
        message("user", "Look it up."),
        message("assistant", "I look.", phase="commentary"),
        message("assistant", "Here it is.", phase="final_answer"),
        message("user", "Thanks."),
    ],
}


@pytest.mark.parametrize("case", MESSAGES)
async def test_messages(http: httpx.AsyncClient, case: str) -> None:
    response = await answered(http, MESSAGES[case])
    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]] == ["message"]


async def test_a_tool_is_called_and_its_output_comes_back(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source = THINKS
    engine.script = said(f"<think>hm</think>{HERMES}")
    response = await answered(http, [message("user", "Weather in Rome?")], tools=[WEATHER])
    assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]
    engine.script = said(HERMES)
    chosen = {"type": "function", "name": "get_weather"}
    response = await answered(http, "Weather?", tools=[WEATHER], tool_choice=chosen)
    [call] = response["output"]
    assert json.loads(call["arguments"]) == {"location": "Rome"}
    told = {"type": "function_call_output", "call_id": call["call_id"], "output": "21"}
    engine.script = said("It is 21.")
    history = [message("user", "Weather?"), call, told]
    response = await answered(http, history, tools=[WEATHER])
    assert response["status"] == "completed"
    engine.script = said(HERMES)
    allowed = {"type": "allowed_tools", "tools": [chosen], "mode": "required"}
    response = await answered(http, "Weather?", tools=[WEATHER], tool_choice=allowed)
    assert [item["type"] for item in response["output"]] == ["function_call"]


async def test_a_picture() -> None:
    async with SeeingGateway() as gateway:
        parts = [
            {"type": "input_text", "text": "What is in it?"},
            {"type": "input_image", "image_url": data_uri()},
        ]
        response = await answered(gateway.client, [message("user", parts)])
        assert response["status"] == "completed"


async def test_it_goes_on_from_a_response(tmp_path: Path, engine: FakeEngineClient) -> None:
    async with storing(tmp_path, engine, stored_response_hours=1) as gateway:
        first = await answered(gateway.http, "Remember this word: papaya.")
        second = await answered(gateway.http, "Which word?", previous_response_id=first["id"])
        assert second["status"] == "completed"
        assert b"papaya" in bytes(engine.submitted[-1][0])


async def test_what_was_asked_comes_back(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    response = await answered(
        http,
        "Hi",
        reasoning={"effort": "low"},
        text={"format": schema, "verbosity": "low"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        metadata={"a": "b"},
        safety_identifier="s",
        prompt_cache_key="k",
        max_tool_calls=1,
        truncation="auto",
    )
    assert response["text"]["format"] == {**schema, "description": None, "strict": False}
    assert response["output"][0]["content"][0]["logprobs"]
    engine.script = say("cut", finish="length")
    response = await answered(http, "Hi", max_output_tokens=16)
    assert response["status"] == "incomplete"


async def test_an_error_in_a_stream(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.script = lambda prompt, params: [[], EngineUnavailable("the engine is gone")]
    streamed = await http.post(URL, json={"input": "Hi", "stream": True})
    events = [
        json.loads(line.removeprefix("data: "))
        for line in streamed.text.split("\n")
        if line.startswith("data: ")
    ]
    for event in events:
        check_event(event)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
