"""Every shape of answer that a gateway gives is taken back as a part of the conversation, on each
API."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.anthropic.test_messages import said
from tests.gateway.fake_engine import MODEL, FakeEngineClient

CALL = '<tool_call>\n{"name": "look", "arguments": %s}\n</tool_call>'
ANSWERS = {
    "words": ("It rains.", "stop"),
    "only thoughts": ("<think>It may rain", "length"),
    "thoughts and words": ("<think>It may rain.</think>It rains.", "stop"),
    "a call": (CALL % '{"x": 1}', "stop"),
    "words and two calls": ("Let me see." + CALL % '{"x": 1}' + CALL % '{"x": 2}', "stop"),
    "a call of thoughts": ("<think>Hm.</think>" + CALL % '{"x": "ü\\n"}', "stop"),
    "a call cut short": ((CALL % '{"text": "on and on"}')[:-18], "length"),
    "a call with a raw newline": (CALL % '{"text": "two\nlines"}', "stop"),
    "a call with a number of 256 bits": (CALL % f'{{"x": {2**256 - 1}}}', "stop"),
    "a call whose arguments are no object": (CALL % "[1, 2]", "stop"),
}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ASKED = {"role": "user", "content": "What is the weather?"}


async def chat(http: httpx.AsyncClient, results: str | None) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    body: dict[str, Any] = {"model": MODEL, "messages": [ASKED], "tools": tools}
    message = (await posted(http, "/v1/chat/completions", body))["choices"][0]["message"]
    turns = [ASKED, message]
    for call in message.get("tool_calls") or ():
        turns.append({"role": "tool", "tool_call_id": call["id"], "content": results})
    await posted(http, "/v1/chat/completions", {**body, "messages": [*turns, ASKED]})


async def responses(http: httpx.AsyncClient, results: str | None) -> None:
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA}]
    body: dict[str, Any] = {"model": MODEL, "input": [ASKED], "tools": tools, "store": False}
    output = (await posted(http, "/v1/responses", body))["output"]
    turns = [ASKED, *output]
    for item in output:
        if item["type"] == "function_call":
            told = {"type": "function_call_output", "call_id": item["call_id"]}
            turns.append({**told, "output": results or ""})
    await posted(http, "/v1/responses", {**body, "input": [*turns, ASKED]})


async def messages(http: httpx.AsyncClient, results: str | None) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 64,
        "messages": [ASKED],
        "tools": [{"name": "look", "input_schema": SCHEMA}],
    }
    content = (await posted(http, "/v1/messages", body))["content"]
    told: list[Any] = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": results}
        for block in content
        if block["type"] == "tool_use"
    ]
    told.append({"type": "text", "text": "And now?"})
    turns = [ASKED, {"role": "assistant", "content": content}, {"role": "user", "content": told}]
    await posted(http, "/v1/messages", {**body, "messages": turns})


async def ollama(http: httpx.AsyncClient, results: str | None) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    body: dict[str, Any] = {"model": MODEL, "stream": False, "messages": [ASKED], "tools": tools}
    message = (await posted(http, "/api/chat", body))["message"]
    turns = [ASKED, message]
    for call in message.get("tool_calls") or ():
        name = call["function"]["name"]
        turns.append({"role": "tool", "tool_name": name, "content": results})
    await posted(http, "/api/chat", {**body, "messages": [*turns, ASKED]})


async def posted(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    # Not httpx's json=, which refuses what a client may well have.
    reply = await http.post(
        path, content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("api", [chat, responses, messages, ollama])
@pytest.mark.parametrize("results", ["Rain.", None])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_what_was_answered_can_be_sent_back(
    engine: FakeEngineClient, api: Any, results: str | None, answer: str
) -> None:
    text, finish = ANSWERS[answer]
    engine.script = said(text, finish=finish)
    thinks = "deepseek_r1" if "<think>" in text else "none"
    config = GatewayConfig(
        enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser=thinks
    )
    app = create_app(cast(Any, engine), config)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        await api(http, results)
    seen, _ = engine.template.calls[-1]
    assert len(seen) > 2, "the answer is in the conversation"
