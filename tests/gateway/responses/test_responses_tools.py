"""Tool calls and thoughts in POST /v1/responses, from a scripted engine."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import MODEL, FakeEngineClient, say
from tests.gateway.responses.tool_answers import (
    ARGUMENTS,
    CALL,
    HERMES,
    NAMED,
    NOW,
    SCHEMA,
    URL,
    WEATHER,
    body,
    built,
    called,
    events_of,
    message,
    plain,
    said,
    thought,
    whole_reply,
)

THINKS = "<think></think><tool_call>name"
CASES: list[tuple[str, str, list[tuple[str, ...]]]] = [
    ("<tool_call>name", HERMES, [called()]),
    ("<tool_call>name", f"Wait. é\n{HERMES}", [message("Wait. é\n"), called()]),
    ("<tool_call>name", f"{HERMES}\n{HERMES}", [called(), called()]),
    (
        "<tool_call>name",
        f"A\n{HERMES}B\n{HERMES}",
        [message("A\n"), called(), message("B\n"), called()],
    ),
    ("<tool_call>name", "It is sunny.", [message("It is sunny.")]),
    ("<tool_call>name", "<tool_call>oh</tool_call>", [message("<tool_call>oh</tool_call>")]),
    ("[TOOL_CALLS]", f"[TOOL_CALLS][{CALL}, {CALL}]", [called(), called()]),
    ("Environment: ipython", CALL, [called()]),
    ("", f"[{CALL}]", [called()]),
    ("", "", []),
    (THINKS, "<think>\nHm, é.\n</think>\n\nYes.", [thought("Hm, é."), message("Yes.")]),
    (THINKS, f"<think>x</think>{HERMES}", [thought("x"), called()]),
    (
        THINKS,
        f"<think>x</think>Look:\n{HERMES}",
        [thought("x"), message("Look:\n"), called()],
    ),
]


@pytest.mark.parametrize(("template", "text", "items"), CASES)
async def test_items_streamed_and_whole(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    template: str,
    text: str,
    items: list[tuple[str, ...]],
) -> None:
    engine.template.source = template
    for seed in (None, *range(8)):
        engine.script = said(text, seed=seed)
        whole = await whole_reply(http, request_id="r")
        assert plain(whole["output"]) == items, seed
        events = await events_of(http, request_id="r")
        streamed = built(events)
        last = events[-1]
        assert [event["type"] for event in (*events[:2], last)] == [
            "response.created",
            "response.in_progress",
            "response.completed",
        ]
        assert last["response"]["output"] == streamed
        calls = [item.pop("call_id") for item in streamed + whole["output"] if "call_id" in item]
        assert len(set(calls)) == len(calls)
        assert streamed == whole["output"], seed
        varies = {"created_at", "completed_at", "output"}
        assert {k: v for k, v in last["response"].items() if k not in varies} == {
            k: v for k, v in whole.items() if k not in varies
        }


@pytest.mark.parametrize(("template", "text", "items"), CASES)
async def test_log_probabilities_are_those_of_the_messages(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    template: str,
    text: str,
    items: list[tuple[str, ...]],
) -> None:
    """A token is a byte here, so that a message's tokens are its text; and the last one's, if it
    is at the end, with the token that ends the answer."""
    engine.template.source = template
    engine.script = say(text)
    whole = (await whole_reply(http, top_logprobs=2))["output"]
    streamed = built(events := await events_of(http, top_logprobs=2))
    ends = b"<|end|>" if whole[-1]["type"] == "message" else b""
    messages = [item["content"][0] for item in whole if item["type"] == "message"]
    for place, part in enumerate(messages, start=1):
        told = b"".join(bytes(one["bytes"]) for one in part["logprobs"])
        assert told == part["text"].encode() + (ends if place == len(messages) else b"")
    assert [item["content"][0] for item in streamed if item["type"] == "message"] == messages
    deltas = [one for event in events for one in event.get("logprobs", ()) if "delta" in event]
    assert deltas == [one for part in messages for one in part["logprobs"]]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("<think>x", [thought("x", "incomplete")]),
        ("<think>x</think>Ye", [thought("x"), message("Ye", "incomplete")]),
        (
            f"<think>x</think>{HERMES}".removesuffix("}}\n</tool_call>"),
            [thought("x"), called(ARGUMENTS[:-1], "incomplete")],
        ),
    ],
)
async def test_what_was_cut_short_is_the_last_item(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    text: str,
    items: list[tuple[str, ...]],
) -> None:
    engine.template.source = THINKS
    engine.script = said(text, finish="length")
    whole = await whole_reply(http)
    assert whole["status"] == "incomplete"
    assert plain(whole["output"]) == items
    events = await events_of(http)
    assert events[-1]["type"] == "response.incomplete"
    assert plain(built(events)) == items


async def test_a_message_begins_when_there_is_content(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    """Not before: or a client shows an empty message in front of a call."""
    engine.template.source = THINKS
    engine.script = said(f"<think>x</think>{HERMES}")
    added = [e["item"]["type"] for e in await events_of(http) if "output_item.added" in e["type"]]
    assert added == ["reasoning", "function_call"]


async def test_arguments_come_as_they_are_written(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source = "<tool_call>name"
    engine.script = said(HERMES)
    events = await events_of(http)
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert len(deltas) > len(ARGUMENTS) / 2


async def test_one_call_only(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.script = said(f"[{CALL}, {CALL}]")
    reply = await whole_reply(http, parallel_tool_calls=False)
    assert plain(reply["output"]) == [called()]
    assert reply["parallel_tool_calls"] is False
    assert plain(built(await events_of(http, parallel_tool_calls=False))) == [called()]


async def test_forced_calls(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    """The grammar is chat's: it holds the same for both."""
    chat = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}],
    }
    named = {"type": "function", "function": {"name": "get_weather"}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
    whole = f'[{{"name": "get_weather", "parameters": {ARGUMENTS}}}]'
    for choice, same, text in (
        (allowed, "required", whole),
        ("required", "required", whole),
        (NAMED, named, ARGUMENTS),
    ):
        engine.script = said(text)
        reply = await whole_reply(http, tool_choice=choice, tools=[WEATHER])
        assert plain(reply["output"]) == [called()]
        assert reply["tool_choice"] == choice
        assert plain(built(await events_of(http, tool_choice=choice, tools=[WEATHER]))) == [
            called()
        ]
        response = await http.post("/v1/chat/completions", json={**chat, "tool_choice": same})
        assert response.status_code == 200, response.text
        grammars = [params.structured_outputs for _, params, _ in engine.submitted[-3:]]
        assert grammars[0] is not None
        assert grammars[0] == grammars[1] == grammars[2]


async def test_none_shows_no_tools(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.script = said(CALL)
    reply = await whole_reply(http, tool_choice="none")
    assert plain(reply["output"]) == [message(CALL)]
    assert "tools" not in engine.template.calls[-1][1]
    await whole_reply(http)
    function = {"name": "get_weather", "description": "Weather of a city.", "parameters": SCHEMA}
    assert engine.template.calls[-1][1]["tools"] == [
        {"type": "function", "function": function},
        {
            "type": "function",
            "function": {
                "name": "now",
                "description": "",
                "parameters": {"type": "object", "properties": {}},
            },
        },
    ]


async def test_special_tokens_that_mark_calls_are_shown(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source = "[TOOL_CALLS]"
    mark = SimpleNamespace(content="[TOOL_CALLS]", special=True)
    engine.text.tokenizer.added_tokens = {END: mark}
    engine.script = said("Yes")
    await whole_reply(http)
    await whole_reply(http, tool_choice="none")
    assert [p.skip_special_tokens for _, p, _ in engine.submitted] == [False, True]


async def test_what_was_asked_comes_back(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.script = said("Yes")
    reply = await whole_reply(http, reasoning={"effort": "low", "summary": "auto"})
    bare = {"description": None, "parameters": None, "strict": None}
    assert reply["tools"] == [WEATHER, NOW | bare]
    assert (reply["tool_choice"], reply["parallel_tool_calls"]) == ("auto", True)
    assert reply["reasoning"]["effort"] == "low"
    assert engine.template.calls[0][1]["reasoning_effort"] == "low"


async def test_the_sdk_and_the_way_back(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    """An answer's items are the next request's input, as the SDK sends them."""
    engine.template.source = THINKS
    engine.script = said(f"<think>x</think>Look:\n{HERMES}")
    client = openai.AsyncOpenAI(api_key="k", base_url="http://gateway/v1", http_client=http)
    tools: Any = [WEATHER]
    reply = await client.responses.create(model=MODEL, input="Hi", tools=tools)
    arguments = ""
    async with client.responses.stream(model=MODEL, input="Hi", tools=tools) as stream:
        async for event in stream:
            if event.type == "response.function_call_arguments.delta":
                arguments += event.delta
                assert event.snapshot == arguments
        final = await stream.get_final_response()
    assert arguments == ARGUMENTS
    assert plain([item.model_dump() for item in final.output]) == plain(
        [item.model_dump() for item in reply.output]
    )
    call: Any = final.output[-1]
    assert call.parsed_arguments == json.loads(ARGUMENTS)
    told = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    again: Any = [{"role": "user", "content": "Hi"}, *final.output, told]
    await client.responses.create(model=MODEL, input=again, tools=tools)
    function = {"name": "get_weather", "arguments": json.loads(ARGUMENTS)}
    assert engine.template.calls[-1][0][1:] == [
        {
            "role": "assistant",
            "content": "Look:\n",
            "reasoning_content": "x",
            "tool_calls": [{"type": "function", "function": function, "id": call.call_id}],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "sunny"},
    ]


async def test_thoughts_belong_to_the_turn_behind_them(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.script = said("Yes")

    def thoughts(text: str) -> dict[str, Any]:
        content = [{"type": "reasoning_text", "text": text}]
        return {"type": "reasoning", "id": "rs", "summary": [], "content": content}

    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": "now", "arguments": "{}"}

    def output(name: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": name, "output": "noon"}

    user = {"role": "user", "content": "Hi"}
    turns = [call("1"), call("2"), output("1"), output("2"), thoughts("b"), call("3"), output("3")]
    await whole_reply(http, input=[thoughts("lost"), user, thoughts("a"), *turns])
    given = engine.template.calls[-1][0]
    assert [m["role"] for m in given] == [
        "user",
        *["assistant", "tool", "tool"],
        "assistant",
        "tool",
    ]
    assert [m.get("reasoning_content") for m in given] == [None, "a", None, None, "b", None]
    assert [[c["id"] for c in m.get("tool_calls", ())] for m in given][1::3] == [["1", "2"], ["3"]]

    # Behind words of the assistant's own they begin a message.
    words = {"role": "assistant", "content": "Wait."}
    await whole_reply(http, input=[user, words, thoughts("c"), call("4"), output("4")])
    given = engine.template.calls[-1][0]
    assert [m.get("reasoning_content") for m in given] == [None, None, "c", None]
    assert [m["content"] for m in given] == ["Hi", "Wait.", "", "noon"]


def _call(**fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **fields}


def _output(given: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c", "output": given}


def _within(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [{"type": "namespace", "name": "n", "description": "N.", "tools": tools}]}


def _allow(*names: str, mode: str = "auto") -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"tool_choice": {"type": "allowed_tools", "mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [{"type": "hats"}]}, "tools[0].type", "allowed: function"),
        ({"tools": [{"type": ["function"]}]}, "tools[0].type", "allowed: function"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name", "missing"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools", "missing"),
        (_within({"type": "web_search"}), "tools[0].tools[0].type", "allowed: function, custom"),
        (_within({"type": "custom", "name": "a b"}), "tools[0].tools[0].name", "[0].name is"),
        (_within(NOW, NOW), "tools[0].tools[1].name", "another tool"),
        ({"tools": [{"type": "mcp"}], "tool_choice": "required"}, "tool_choice", "hasn't: mcp"),
        (
            {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools",
            "offers, but mcp",
        ),
        ({"input": [_call(arguments={})]}, "input[0].arguments", "holds JSON"),
        ({"input": [_output({})]}, "input[0].output", "a list of parts"),
        ({"input": [_call(type="custom_tool_call")]}, "input[0].input", "missing"),
        ({"input": [{"type": "shell_call", "call_id": "c"}]}, "input[0].action", "missing"),
        ({"tools": [WEATHER, {"name": "f"}]}, "tools[1].type", "missing"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
        ({"tools": [{"type": "function", "name": 3}]}, "tools[0].name", "expected str"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].name", "missing"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "tools[0].name is"),
        ({"tools": [NOW, NOW]}, "tools[1].name", "another tool"),
        ({"tools": [{**NOW, "name": f"f{i}"} for i in range(4097)]}, "tools", "at most 4096"),
        ({"tools": {}}, "tools", "expected array"),
        ({"tool_choice": "sometimes"}, "tool_choice", '{"type": "function", "name": …}'),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "an object with type web_search"),
        (_allow(), "tool_choice.tools", "tool_choice.tools is empty"),
        (_allow("x"), "tool_choice.tools[0]", "tool_choice.tools[0] names"),
        (_allow("now", mode="none"), "tool_choice.mode", "tool_choice.mode is"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "none, {"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "get_weather"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "needs tools"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort", "reasoning.effort is"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary", "auto, concise, detailed"),
        ({"input": [_call(call_id=None)]}, "input[0].call_id", "missing"),
        (
            {"input": [{"type": "function_call_output", "output": "x"}]},
            "input[0].call_id",
            "missing",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c"}]},
            "input[0].output",
            "missing",
        ),
    ],
)  # fmt: skip
async def test_refused(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str, says: str
) -> None:
    response = await http.post(URL, json=body(**fields))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert says in error["message"]


async def test_the_model_may_not_choose(engine: FakeEngineClient) -> None:
    app = create_app(engine, GatewayConfig(enable_auto_tool_choice=False))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        response = await http.post(URL, json=body())
    assert response.status_code == 400
    assert "--no-enable-auto-tool-choice" in response.json()["error"]["message"]
