"""Every shape of answer that a gateway gives is taken back as a part of the conversation, on each
API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock.text.as_written import text_of
from penstock.text.call_arguments import INVALID
from penstock_gateway.app import create_app
from tests.dialects.anthropic.asking import said
from tests.gateway.chat.known_answers import ANSWERS, CALL, FOREIGN, Said
from tests.gateway.fake_engine import MODEL, FakeEngineClient

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ASKED = {"role": "user", "content": "What is the weather?"}


RESULTS: dict[str, Any] = {
    "text": "Rain.",
    "nothing": None,
    "parts": [{"type": "text", "text": "Rain."}, {"type": "text", "text": "Wind."}],
    "no parts": [],
}


async def chat(http: httpx.AsyncClient, result: Any, **asked: Any) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    body: dict[str, Any] = {"model": MODEL, "messages": [ASKED], "tools": tools, **asked}
    message = (await posted(http, "/v1/chat/completions", body))["choices"][0]["message"]
    turns = [ASKED, message]
    for call in message.get("tool_calls") or ():
        turns.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    await posted(http, "/v1/chat/completions", {**body, "messages": [*turns, ASKED]})


async def chat_with_logprobs(http: httpx.AsyncClient, result: Any) -> None:
    await chat(http, result, logprobs=True, top_logprobs=1)


async def chat_streamed(http: httpx.AsyncClient, result: Any) -> None:
    """A streamed message as OpenAI's SDK joins it: each call has its index."""
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    body: dict[str, Any] = {"model": MODEL, "messages": [ASKED], "tools": tools}
    message: dict[str, Any] = {"content": None, "refusal": None}
    for event in await streamed(http, "/v1/chat/completions", body):
        for choice in event["choices"]:
            add_delta(message, choice["delta"])
    turns = [ASKED, message]
    for call in message.get("tool_calls") or ():
        turns.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    await posted(http, "/v1/chat/completions", {**body, "messages": [*turns, ASKED]})


def add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key in ("role", "id", "type", "index", "name"):
            message[key] = value
        elif key == "tool_calls":
            calls = message.setdefault(key, [])
            for call in value:
                calls += [{"function": {}}] * (call["index"] + 1 - len(calls))
                made = calls[call["index"]] = {**calls[call["index"]]}
                made["function"] = dict(made["function"])
                add_delta(made["function"], call.pop("function", {}))
                add_delta(made, call)
        elif value is not None:
            message[key] = (message.get(key) or "") + value


async def responses(http: httpx.AsyncClient, result: Any, **asked: Any) -> None:
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA}]
    body: dict[str, Any] = {"model": MODEL, "input": [ASKED], "tools": tools, "store": False}
    body |= asked
    output = (await posted(http, "/v1/responses", body))["output"]
    await send_items(http, body, output, result)


async def responses_with_logprobs(http: httpx.AsyncClient, result: Any) -> None:
    include = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    await responses(http, result, include=include, top_logprobs=1)


async def responses_streamed(http: httpx.AsyncClient, result: Any) -> None:
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA}]
    body: dict[str, Any] = {"model": MODEL, "input": [ASKED], "tools": tools, "store": False}
    events = await streamed(http, "/v1/responses", body)
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    await send_items(http, body, items, result)


async def send_items(
    http: httpx.AsyncClient, body: dict[str, Any], items: list[Any], result: Any
) -> None:
    turns = [ASKED, *items]
    parts = result
    if isinstance(result, list):
        parts = [{**part, "type": "input_text"} for part in result]
    for item in items:
        if item["type"] == "function_call":
            told = {"type": "function_call_output", "call_id": item["call_id"]}
            turns.append({**told, "output": "" if parts is None else parts})
    await posted(http, "/v1/responses", {**body, "input": [*turns, ASKED]})


async def messages(http: httpx.AsyncClient, result: Any, **told: Any) -> None:
    content = (await posted(http, "/v1/messages", ASKED_MESSAGES))["content"]
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": result, **told}
        for block in content
        if block["type"] == "tool_use"
    ]
    results.append({"type": "text", "text": "And now?"})
    turns = [ASKED, {"role": "assistant", "content": content}, {"role": "user", "content": results}]
    await posted(http, "/v1/messages", {**ASKED_MESSAGES, "messages": turns})


async def messages_of_errors(http: httpx.AsyncClient, result: Any) -> None:
    await messages(http, result, is_error=True, cache_control={"type": "ephemeral"})


ASKED_MESSAGES: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 64,
    "messages": [ASKED],
    "tools": [{"name": "look", "input_schema": SCHEMA}],
}


async def ollama(http: httpx.AsyncClient, result: Any) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    body: dict[str, Any] = {"model": MODEL, "stream": False, "messages": [ASKED], "tools": tools}
    message = (await posted(http, "/api/chat", body))["message"]
    if isinstance(result, list):  # It has texts only.
        result = "".join(part["text"] for part in result)
    turns = [ASKED, message]
    for call in message.get("tool_calls") or ():
        name = call["function"]["name"]
        turns.append({"role": "tool", "tool_name": name, "content": result})
    await posted(http, "/api/chat", {**body, "messages": [*turns, ASKED]})


async def streamed(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    """Its events."""
    reply = await http.post(path, json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def posted(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    # Not httpx's json=, which refuses what a client may well have.
    reply = await http.post(
        path, content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


def told(seen: list[dict[str, Any]]) -> Said:
    """What the assistant's turns in a conversation say, without line breaks between parts."""
    own = [message for message in seen if message["role"] == "assistant"]
    calls = [call for message in own for call in message.get("tool_calls") or ()]
    arguments = [call["function"]["arguments"] for call in calls]
    return Said(
        "",
        "".join(message.get("reasoning_content") or "" for message in own),
        "".join(message["content"] for message in own).replace("\n", ""),
        tuple(each[INVALID] if set(each) == {INVALID} else each for each in arguments),
    )


APIS = (
    *(chat, chat_with_logprobs, chat_streamed, responses, responses_with_logprobs),
    *(responses_streamed, messages, messages_of_errors, ollama),
)


@asynccontextmanager
async def gateway(engine: FakeEngineClient, thinks: str) -> AsyncIterator[httpx.AsyncClient]:
    config = GatewayConfig(
        enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser=thinks
    )
    transport = httpx.ASGITransport(create_app(cast(Any, engine), config))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        yield http


SENT_BACK = [
    *((answer, "text") for answer in ANSWERS),
    *(("words and two calls", result) for result in RESULTS if result != "text"),
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("answer", "result"), SENT_BACK)
async def test_what_was_answered_can_be_sent_back(
    engine: FakeEngineClient, api: Any, answer: str, result: str
) -> None:
    """All of it reaches the next prompt, and so does what the tools said."""
    wrote = ANSWERS[answer]
    engine.script = said(wrote.text, finish=wrote.finish)
    async with gateway(engine, "deepseek_r1" if wrote.thought else "none") as http:
        await api(http, RESULTS[result])
    seen, _ = engine.template.calls[-1]
    expected = wrote._replace(text="", finish="stop", said=wrote.said.replace("\n", ""))
    assert told(seen) == expected
    results = [message["content"] for message in seen if message["role"] == "tool"]
    assert len(results) == len(wrote.arguments)
    shown = "" if result in ("nothing", "no parts") else "Rain."
    assert all(each.startswith(shown) and (shown or not each) for each in results)


@pytest.mark.parametrize("turn", FOREIGN)
async def test_what_other_servers_answer_can_be_sent_back(
    engine: FakeEngineClient, turn: str
) -> None:
    path, message, expected = FOREIGN[turn]
    engine.script = said("It rains.")
    where = "input" if path == "/v1/responses" else "messages"
    body = {"model": MODEL, where: [ASKED, message, ASKED]}
    body |= {"max_tokens": 64} if path == "/v1/messages" else {}
    async with gateway(engine, "none") as http:
        await posted(http, path, body | ({"stream": False} if path == "/api/chat" else {}))
    seen, _ = engine.template.calls[-1]
    assert told(seen) == expected


async def test_thoughts_of_turns_that_become_one_are_all_kept(engine: FakeEngineClient) -> None:
    """A client sends an answer of Anthropic's that was cut short, and how it went on."""
    turns = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": text}, *more]}
        for text, more in (("One.", []), ("Two.", [{"type": "text", "text": "Yes."}]))
    ]
    engine.script = said("It rains.")
    body = {"model": MODEL, "max_tokens": 64, "messages": [ASKED, *turns, ASKED]}
    async with gateway(engine, "none") as http:
        await posted(http, "/v1/messages", body)
    seen, _ = engine.template.calls[-1]
    assert [message.get("reasoning_content") for message in seen] == [None, "One.\nTwo.", None]


@pytest.mark.parametrize("api", [chat, chat_streamed, responses, responses_streamed])
@pytest.mark.parametrize("more", ["", f', "y": {2**256 - 1}'])
async def test_arguments_reach_the_template_as_the_model_wrote_them(
    engine: FakeEngineClient, api: Any, more: str
) -> None:
    spelled = '{"x":  [1.0, 1e5,{"b": "\\u00e9"}], "a": -0' + more + "}"
    engine.script = said(CALL % spelled)
    async with gateway(engine, "none") as http:
        await api(http, "Rain.")
    seen, _ = engine.template.calls[-1]
    calls = [call for message in seen for call in message.get("tool_calls") or ()]
    assert [text_of(call["function"]["arguments"]) for call in calls] == [spelled]
