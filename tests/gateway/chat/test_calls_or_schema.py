"""Tools together with a schema, on a model that thinks, on each API: the answer is a call, or what
the schema admits, and thoughts may come first."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.dialects.anthropic.asking import said
from tests.gateway.fake_engine import MODEL, FakeEngineClient

CALL = '<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ASKED = [{"role": "user", "content": "What is the weather?"}]
Said = tuple[str, str, list[Any]]
"""Thoughts, words, and arguments of calls."""


async def chat(http: httpx.AsyncClient, choice: str) -> Said:
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = {"messages": ASKED, "tools": tools, "tool_choice": choice, "response_format": form}
    message = (await posted(http, "/v1/chat/completions", body))["choices"][0]["message"]
    calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return message.get("reasoning_content") or "", message["content"] or "", calls


async def responses(http: httpx.AsyncClient, choice: str) -> Said:
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA}]
    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    body = {"input": ASKED, "tools": tools, "tool_choice": choice, "text": text, "store": False}
    output = (await posted(http, "/v1/responses", body))["output"]
    parts = [part for item in output for part in item.get("content") or ()]
    return (
        "".join(part["text"] for part in parts if part["type"] == "reasoning_text"),
        "".join(part["text"] for part in parts if part["type"] == "output_text"),
        [json.loads(item["arguments"]) for item in output if item["type"] == "function_call"],
    )


async def messages(http: httpx.AsyncClient, choice: str) -> Said:
    body = {
        "max_tokens": 64,
        "messages": ASKED,
        "tools": [{"name": "look", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any" if choice == "required" else choice},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    }
    content = (await posted(http, "/v1/messages", body))["content"]
    return (
        "".join(block.get("thinking", "") for block in content),
        "".join(block.get("text", "") for block in content),
        [block["input"] for block in content if block["type"] == "tool_use"],
    )


async def ollama(http: httpx.AsyncClient, choice: str) -> Said:
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    body = {"stream": False, "messages": ASKED, "tools": tools, "format": SCHEMA}
    message = (await posted(http, "/api/chat", body))["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return message.get("thinking") or "", message["content"], calls


async def posted(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    reply = await http.post(path, json={"model": MODEL, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


CASES: list[tuple[str, str, Said]] = [
    ("auto", '<think>Hm.</think>{"x": 2}', ("Hm.", '{"x": 2}', [])),
    ("auto", f"<think>Hm.</think>{CALL}", ("Hm.", "", [{"x": 1}])),
    ("auto", f"{CALL}{CALL}", ("", "", [{"x": 1}, {"x": 1}])),
    (
        "required",
        '<think>Hm.</think><tool_call>\n{"name": "look", "arguments": {"x": 3}}\n</tool_call>',
        ("Hm.", "", [{"x": 3}]),
    ),
    ("required", "<think>It may", ("It may", "", [])),
]


@pytest.mark.parametrize("api", [chat, responses, messages, ollama])
@pytest.mark.parametrize(("choice", "text", "expected"), CASES)
async def test_an_answer_is_either(
    engine: FakeEngineClient, api: Any, choice: str, text: str, expected: Said
) -> None:
    if api is ollama and choice != "auto":
        return  # It has no such field.
    engine.script = said(text)
    config = GatewayConfig(
        enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="qwen3"
    )
    transport = httpx.ASGITransport(create_app(cast(Any, engine), config))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        assert await api(http, choice) == expected
    tag = json.dumps(engine.submitted[-1][1].structured_outputs.structural_tag)
    assert "</think>" in tag
    assert "<tool_call>" in tag
