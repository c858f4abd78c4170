"""Agents' turns as they send them: all are taken, a call comes as they read it, and a turn's prompt
begins as the one before."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.dialects.anthropic.test_agent_session import take
from tests.gateway.agents.shapes import AGENTS_BY_NAME, ASKED, CALLED, RESULT, RULES, Agent
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.responses.tool_answers import events_from, said
from tests.shared.text.test_template_corpus import template_of
from tests.shared.text.test_turn_shape import ALTERNATES, DROPS_OTHERS, FIRST_ONLY

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TEXT = "I say it."


@pytest.fixture
async def http(engine: FakeEngineClient) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(engine, GatewayConfig(tool_call_parser="hermes"))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def answer(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The message that a stream's events make, each of which an SDK knows."""
    response = await http.post(path, json=body)
    if path == "/v1/responses":
        return answer_of(events_from(response)[-1]["response"])
    assert response.status_code == 200, response.text
    datas = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    if path.startswith("/v1/messages"):
        message: dict[str, Any] = {}
        for data in datas:
            event = json.loads(data)
            EVENTS.validate_python(event, strict=True)
            take(message, event)
        return message
    assert datas.pop() == "[DONE]"
    whole: dict[str, Any] = {"content": "", "tool_calls": []}
    calls = whole["tool_calls"]
    for data in datas:
        for choice in ChatCompletionChunk.model_validate_json(data, strict=True).choices:
            whole["content"] += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                function = part.function
                assert function is not None
                if part.index == len(calls):
                    begun = {"name": function.name, "arguments": ""}
                    calls.append({"id": part.id, "type": "function", "function": begun})
                calls[part.index]["function"]["arguments"] += function.arguments or ""
            whole["finish_reason"] = choice.finish_reason
    return whole


def answer_of(response: dict[str, Any]) -> dict[str, Any]:
    """A response in the shape of a chat's message."""
    message, *calls = response["output"]
    return {
        "content": message["content"][0]["text"],
        "tool_calls": [
            {"id": call["call_id"], "function": {key: call[key] for key in ("name", "arguments")}}
            for call in calls
        ],
        "finish_reason": "tool_calls" if calls else "stop",
    }


def call_of(message: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if "stop_reason" in message:
        assert message["stop_reason"] == "tool_use"
        block = message["content"][-1]
        return block["name"], block["input"]
    assert message["finish_reason"] == "tool_calls"
    (call,) = message["tool_calls"]
    return call["function"]["name"], json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("name", AGENTS_BY_NAME)
@pytest.mark.usefixtures("prepared_here")
async def test_two_turns(http: httpx.AsyncClient, engine: FakeEngineClient, name: str) -> None:
    agent = AGENTS_BY_NAME[name]
    call = json.dumps({"name": agent.tool, "arguments": CALLED})
    engine.script = said(f"{TEXT}<tool_call>\n{call}\n</tool_call>" if agent.tool else TEXT, seed=5)
    first = await answer(http, agent.path, agent.turn([]))
    seen, variables = engine.template.calls[-1]
    assert [(each["role"], each["content"]) for each in seen] == agent.shown
    if not agent.tool:
        assert first["content"] == TEXT
        return
    assert call_of(first) == (agent.tool, CALLED)
    tool, *_ = variables["tools"]
    assert tool["function"]["name"] == agent.tool

    engine.script = said("Done.")
    await answer(http, agent.path, agent.turn([(first, RESULT)]))
    again, _ = engine.template.calls[-1]
    assert again[: len(seen)] == seen
    calls, result = again[len(seen) :]
    assert (calls["role"], calls["content"]) == ("assistant", TEXT)
    assert calls["tool_calls"][0]["function"] == {"name": agent.tool, "arguments": CALLED}
    assert (result["role"], result["content"]) == ("tool", RESULT)
    assert result["tool_call_id"] == calls["tool_calls"][0]["id"]


@pytest.mark.parametrize("source", [FIRST_ONLY, DROPS_OTHERS, ALTERNATES])
@pytest.mark.parametrize("name", AGENTS_BY_NAME)
def test_every_template_shows_all_of_it(name: str, source: str) -> None:
    """The prompt's words, in their order, in templates that take one system message, in front."""
    agent: Agent = AGENTS_BY_NAME[name]
    template = template_of(source)
    messages = [{"role": role, "content": content} for role, content in agent.shown]
    text = template.render(template.arranged(messages))
    places = [text.find(content) for _, content in agent.shown]
    assert places == sorted(places)
    assert places[0] >= 0
    assert RULES in text
    assert ASKED in text
