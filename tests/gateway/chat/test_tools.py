"""Tool calls and reasoning over HTTP, from a scripted engine."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.byte_tokenizer import END
from tests.gateway.chat.tool_calls import (
    HERMES,
    URL,
    WEATHER,
    allow,
    body,
    choice_of,
    streamed_choice,
)
from tests.gateway.fake_engine import FakeEngineClient, say

CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


def said(text: str, **options: Any) -> Any:
    """A script: `text`, without the index that `say` adds."""
    script = say(text, **options)

    def exactly(prompt: list[int], params: Any) -> Any:
        *steps, index, end = script(prompt, params)
        index[0].text = ""
        return [*steps, index, end]

    return exactly


@pytest.mark.parametrize(
    ("template", "text", "content", "calls", "reason"),
    [
        (HERMES, f"Wait.\n<tool_call>\n{CALL}\n</tool_call>", "Wait.\n", 1, "tool_calls"),
        (HERMES, f"<tool_call>{CALL}</tool_call>\n" * 2, None, 2, "tool_calls"),
        ("[TOOL_CALLS]", f"[TOOL_CALLS][{CALL}, {CALL}]", None, 2, "tool_calls"),
        ("Environment: ipython", CALL, None, 1, "tool_calls"),
        ("", f"[{CALL}]", None, 1, "tool_calls"),
        ("", "It is sunny.", "It is sunny.", 0, "stop"),
        (HERMES, "<tool_call>oh</tool_call>", "<tool_call>oh</tool_call>", 0, "stop"),
    ],
)  # fmt: skip
async def test_calls_streamed_and_whole(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    template: str,
    text: str,
    content: str | None,
    calls: int,
    reason: str,
) -> None:
    engine.template.source = template
    engine.script = said(text)
    whole = await choice_of(http)
    message = whole["message"]
    assert message["content"] == content
    assert whole["finish_reason"] == reason
    assert ("tool_calls" in message) == bool(calls)
    shown = message.get("tool_calls", [])
    assert len(shown) == calls
    for call in shown:
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    streamed = await streamed_choice(http)
    assert streamed["message"]["content"] == content
    assert streamed["finish_reason"] == reason
    assert [(c["name"], c["text"]) for c in streamed["calls"]] == [
        (c["function"]["name"], c["function"]["arguments"]) for c in shown
    ]
    ids = [call["id"] for call in [*shown, *streamed["calls"]]]
    assert len(set(ids)) == 2 * calls
    pattern = r"[0-9a-zA-Z]{9}" if template == "[TOOL_CALLS]" else r"call_[0-9a-f]{24}"
    assert all(re.fullmatch(pattern, name) for name in ids)


async def test_a_call_that_is_cut_short(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.template.source = HERMES
    engine.script = said(f"<tool_call>{CALL}"[:-3], finish="length")
    whole = await choice_of(http)
    assert whole["finish_reason"] == "length"
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris'
    assert (await streamed_choice(http))["calls"][0]["text"] == '{"city": "Paris'


async def test_parallel_calls_can_be_turned_off(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.script = said(f"[{CALL}, {CALL}]")
    assert len((await choice_of(http))["message"]["tool_calls"]) == 2
    assert len((await choice_of(http, parallel_tool_calls=False))["message"]["tool_calls"]) == 1
    assert len((await streamed_choice(http, parallel_tool_calls=False))["calls"]) == 1
    await choice_of(http, tool_choice="required", parallel_tool_calls=False)
    schema = engine.submitted[-1][1].structured_outputs.json
    assert schema["maxItems"] == 1


async def test_required(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    arguments = '{"city": "Rome"}'
    engine.script = said(f'[{{"name": "get_weather", "parameters": {arguments}}}]')
    whole = await choice_of(http, tool_choice="required")
    assert whole["message"]["content"] is None
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == arguments
    assert whole["finish_reason"] == "tool_calls"
    streamed = await streamed_choice(http, tool_choice="required")
    assert [(c["name"], c["text"]) for c in streamed["calls"]] == [("get_weather", arguments)]
    schema = engine.submitted[0][1].structured_outputs.json
    assert schema["minItems"] == 1
    first = schema["items"]["anyOf"][0]["properties"]
    assert first["name"] == {"const": "get_weather"}
    # A reference still leads to what it named.
    place = first["parameters"]["properties"]["city"]["$ref"]
    at: Any = schema
    for step in place.removeprefix("#/").split("/"):
        at = at[int(step)] if isinstance(at, list) else at[step]
    assert at == {"type": "string"}


@pytest.mark.parametrize("text", ["[", '[{"na', '[{"name": "get_weather", "par'])
async def test_required_but_cut_before_a_call_began(
    http: httpx.AsyncClient, engine: FakeEngineClient, text: str
) -> None:
    engine.script = said(text, finish="length")
    whole = await choice_of(http, tool_choice="required")
    assert whole["message"] == {"role": "assistant", "content": "", "refusal": None}
    assert whole["finish_reason"] == "length"
    streamed = await streamed_choice(http, tool_choice="required")
    assert streamed["message"]["content"] is None
    assert (streamed["calls"], streamed["finish_reason"]) == ([], "length")


async def test_a_named_function(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.script = said('{"city": "Rome"}')
    named = {"type": "function", "function": {"name": "get_weather"}}
    whole = await choice_of(http, tool_choice=named)
    (call,) = whole["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    assert whole["finish_reason"] == "stop"
    assert (await streamed_choice(http, tool_choice=named))["calls"][0][
        "text"
    ] == '{"city": "Rome"}'
    params = engine.submitted[0][1]
    assert params.structured_outputs.json == WEATHER["function"]["parameters"]


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_allowed_tools_are_as_if_there_were_no_others(
    http: httpx.AsyncClient, engine: FakeEngineClient, mode: str
) -> None:
    engine.script = said(f"[{CALL.replace('arguments', 'parameters')}]")
    allowed = await choice_of(http, **allow("get_weather", mode=mode))
    alone = await choice_of(http, tools=[WEATHER], tool_choice=mode)
    for message in (allowed["message"], alone["message"]):
        (call,) = message["tool_calls"]
        assert call.pop("id")
        assert call["function"]["name"] == "get_weather"
    assert allowed == alone
    (one, other) = (params for _, params, _ in engine.submitted)
    assert one == other
    assert engine.template.calls[0] == engine.template.calls[1]
    other_tool = await choice_of(http, **allow("now"))
    assert "tool_calls" not in other_tool["message"], "a call of a tool that isn't allowed is text"


async def test_none_shows_no_tools(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.script = said(CALL)
    whole = await choice_of(http, tool_choice="none")
    assert whole["message"]["content"] == CALL
    assert "tools" not in engine.template.calls[-1][1]
    await choice_of(http)
    shown = engine.template.calls[-1][1]["tools"]
    whole = {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}
    assert shown == [WEATHER, {"type": "function", "function": whole}]


async def test_special_tokens_that_mark_calls_are_shown(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source = "[TOOL_CALLS]"
    mark = SimpleNamespace(content="[TOOL_CALLS]", special=True)
    engine.text.tokenizer.added_tokens = {END: mark}
    await choice_of(http)
    await choice_of(http, tool_choice="none")
    assert [p.skip_special_tokens for _, p, _ in engine.submitted] == [False, True]


async def test_what_the_model_called_goes_back_into_the_template(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.script = said("Sunny.")
    asked = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    }
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    question = {"role": "user", "content": "Weather?"}
    await choice_of(http, messages=[question, asked, answer])
    given = engine.template.calls[0][0]
    function = {"name": "get_weather", "arguments": {"city": "Paris"}}
    call = {"type": "function", "function": function, "id": "call_1"}
    assert given[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert given[2] == answer


@pytest.mark.parametrize(
    ("text", "thought", "content", "calls"),
    [
        ("<think>\nHm, é.\n</think>\n\nYes.", "Hm, é.", "Yes.", 0),
        (f"<think>x</think><tool_call>{CALL}</tool_call>", "x", None, 1),
        ("No thought.", None, "No thought.", 0),
    ],
)
async def test_reasoning(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    text: str,
    thought: str | None,
    content: str | None,
    calls: int,
) -> None:
    engine.template.source = "<think></think><tool_call>name"
    engine.script = said(text)
    message = (await choice_of(http))["message"]
    assert message.get("reasoning_content") == message.get("reasoning") == thought
    assert message["content"] == content
    assert len(message.get("tool_calls", [])) == calls
    streamed = await streamed_choice(http)
    said_so = streamed["message"]
    assert said_so.get("reasoning_content") == said_so.get("reasoning") == thought
    assert streamed["message"]["content"] == content
    silent = (await choice_of(http, include_reasoning=False))["message"]
    assert not {"reasoning", "reasoning_content"} & silent.keys()
    assert silent["content"] == content


async def test_a_prompt_that_opens_the_thinking(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source = "</think>"
    engine.template.opening = "assistant: <think>\n"
    engine.script = said("Hm.</think>Yes.")
    message = (await choice_of(http, tools=[]))["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")


async def test_reasoning_effort_and_the_like_reach_the_template(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    documents = [{"title": "t", "text": "x"}]
    last = {"role": "assistant", "content": "It is"}
    await choice_of(
        http,
        messages=[{"role": "user", "content": "Hi"}, last],
        reasoning_effort="low",
        documents=documents,
        continue_final_message=True,
        tools=[],
    )
    assert engine.template.calls[0][1] == {
        "add_generation_prompt": False,
        "continue_final_message": True,
        "reasoning_effort": "low",
        "documents": documents,
    }


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("{", {"INVALID_JSON": "{"}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ('{"x": NaN}', {"INVALID_JSON": '{"x": NaN}'}),
        ('{"text": "two\nlines"}', {"text": "two\nlines"}),
        (None, {}),
    ],
)
async def test_a_broken_call_in_the_history_is_shown_as_what_was_written(
    http: httpx.AsyncClient, engine: FakeEngineClient, arguments: str | None, shown: Any
) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "tool_calls": [call]}
    response = await http.post(URL, json=body(messages=[message]))
    assert response.status_code == 200, response.text
    [seen], _ = engine.template.calls[-1]
    assert seen["tool_calls"][0]["function"]["arguments"] == shown


async def test_auto_can_be_turned_off(engine: FakeEngineClient) -> None:
    app = create_app(engine, GatewayConfig(enable_auto_tool_choice=False))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        response = await http.post(URL, json=body())
        assert response.status_code == 400
        assert "enable-auto-tool-choice" in response.json()["error"]["message"]
        assert (await http.post(URL, json=body(tool_choice="none"))).status_code == 200


async def test_tokenize_and_back(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    reply = (await http.post("/tokenize", json={"prompt": "Hé", "return_token_strs": True})).json()
    assert reply == {
        "count": 3,
        "max_model_len": engine.welcome.limits.max_model_len,
        "tokens": [72, 0xC3, 0xA9],
        "token_strs": ["H", "\ufffd", "\ufffd"],
    }
    reply = (await http.post("/tokenize", json=body())).json()
    assert bytes(reply["tokens"]).decode() == "user: Hi\nassistant:"
    assert reply["token_strs"] is None
    assert engine.template.calls[0][1]["tools"][0] == WEATHER
    back = await http.post("/detokenize", json={"tokens": reply["tokens"]})
    assert back.json()["prompt"] == "user: Hi\nassistant:"


@pytest.mark.parametrize(
    ("url", "sent", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": "x", "tools": []}, "tools"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/detokenize", {"tokens": [999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
async def test_tokenize_refuses(
    http: httpx.AsyncClient, url: str, sent: dict[str, Any], param: str
) -> None:
    response = await http.post(url, json=sent)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


async def test_tokenize_of_another_model(http: httpx.AsyncClient) -> None:
    response = await http.post("/detokenize", json={"tokens": [], "model": "x"})
    assert response.status_code == 404
