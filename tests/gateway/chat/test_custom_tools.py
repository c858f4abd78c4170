"""Custom tools in chat completions: the input of a call is a text, in both directions, as OpenAI's
SDK reads and writes it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.gateway import sse
from tests.gateway.chat.tool_calls import HERMES, URL, WEATHER
from tests.gateway.fake_engine import FakeEngineClient, say

INPUT = 'print("é\U0001f600")\nend'
PATCH = {"name": "run", "description": "Runs code."}
DIGITS = {"syntax": "regex", "definition": "[0-9]{2}|x"}


def tool(**more: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {**PATCH, **more}}


def grammar(**given: Any) -> dict[str, Any]:
    return tool(format={"type": "grammar", "grammar": given})


def asked(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {"messages": messages, "tools": [tool(), WEATHER], **fields}


def answer(arguments: str) -> str:
    one = f'<tool_call>{{"name": "run", "arguments": {arguments}}}</tool_call>'
    other = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
    return f"Wait.\n{one}\n{other}\n{one}"


def says(text: str) -> Any:
    """A script: the answer alone."""
    script = say(text)

    def exactly(prompt: list[int], params: Any) -> Any:
        *steps, index, end = script(prompt, params)
        index[0].text = ""
        return [*steps, index, end]

    return exactly


async def streamed(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """The calls of a streamed answer, each put together from its pieces."""
    calls: list[dict[str, Any]] = []
    reply = await http.post(URL, json=asked(stream=True, **fields))
    assert reply.status_code == 200, reply.text
    for chunk in sse.parse(reply.text):
        for choice in chunk["choices"]:
            for piece in choice["delta"].get("tool_calls", ()):
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "type": piece["type"], "text": ""})
                    calls[-1]["name"] = piece[piece["type"]]["name"]
                kind = calls[piece["index"]]["type"]
                assert set(piece) <= {"index", "id", "type", kind}
                field = "input" if kind == "custom" else "arguments"
                calls[piece["index"]]["text"] += piece[kind].get(field, "")
    return calls


@pytest.mark.parametrize("ascii", [True, False])
async def test_calls_are_texts_whole_and_streamed(
    http: httpx.AsyncClient, engine: FakeEngineClient, ascii: bool
) -> None:
    engine.template.source = HERMES
    engine.script = says(answer(json.dumps({"input": INPUT}, ensure_ascii=ascii)))
    sdk = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="x", http_client=http)
    given: Any = asked()
    whole = await sdk.chat.completions.create(model="", **given)
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    first, second, third = choice.message.tool_calls or ()
    assert first.type == third.type == "custom"
    assert (first.custom.name, first.custom.input) == ("run", INPUT)
    assert third.custom.input == INPUT
    assert second.type == "function"
    assert json.loads(second.function.arguments) == {"city": "Rome"}
    calls = await streamed(http)
    assert [(call["name"], call["text"]) for call in calls] == [
        ("run", INPUT),
        ("get_weather", second.function.arguments),
        ("run", INPUT),
    ]
    in_one = await streamed(http, tool_stream=False)
    assert [(c["name"], c["text"]) for c in in_one] == [(c["name"], c["text"]) for c in calls]
    (only,) = await streamed(http, parallel_tool_calls=False)
    assert only["text"] == INPUT


async def test_what_a_model_writes_otherwise_is_its_input(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source = HERMES
    for arguments, text in (('{"code": "1"}', "1"), ('{"a": 1, "b": 2}', '{"a": 1, "b": 2}')):
        engine.script = says(answer(arguments))
        assert [each["text"] for each in await streamed(http)][::2] == [text, text]


async def test_history_and_description_reach_the_template(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    reply = await http.post(
        "/apply-template",
        json={
            "messages": [
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "a", "type": "custom", "custom": {"name": "run", "input": INPUT}}
                    ],
                },
                {"role": "tool", "tool_call_id": "a", "content": "done"},
            ],
            "tools": [grammar(syntax="lark", definition="start: /a+/")],
        },
    )
    assert reply.status_code == 200, reply.text
    assert reply.json()["prompt"]


async def test_a_regular_expression_holds_calls(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source = HERMES
    chosen = {"type": "custom", "custom": {"name": "run"}}
    for choice in (chosen, "required", "auto"):
        fields = {"tools": [grammar(**DIGITS)], "tool_choice": choice}
        assert (await http.post(URL, json=asked(**fields))).status_code == 200
        held = json.dumps(engine.submitted[-1][1].structured_outputs.structural_tag)
        assert json.dumps("^(?:[0-9]{2}|x)$") in held
    fields = {"type": "grammar", **DIGITS}
    body = {"input": "Hi", "tools": [{"type": "custom", "name": "run", "format": fields}]}
    assert (await http.post("/v1/responses", json=body)).status_code == 200
    held = json.dumps(engine.submitted[-1][1].structured_outputs.structural_tag)
    assert json.dumps("^(?:[0-9]{2}|x)$") in held


LARK = {"syntax": "lark", "definition": 'start: "a"+ | /[^"]/'}


def lark_of(node: Any) -> list[str]:
    """Grammars of texts in a structural tag."""
    if isinstance(node, list):
        return [text for each in node for text in lark_of(each)]
    if not isinstance(node, dict):
        return []
    own = [node["grammar"]] if node.get("type") == "lark" else []
    return [*own, *lark_of(list(node.values()))]


async def test_a_lark_grammar_holds_calls(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    """In the model's own format, and where calls are forced as JSON because that isn't known or
    writes texts without quotes."""
    chosen = {"type": "custom", "custom": {"name": "run"}}
    keyed = "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"
    for template, auto in ((HERMES, True), (engine.template.source, False), (keyed, False)):
        engine.template.source = template
        for choice in (chosen, "required", *(["auto"] if auto else [])):
            fields = {"tools": [grammar(**LARK), WEATHER], "tool_choice": choice}
            reply = await http.post(URL, json=asked(**fields))
            assert reply.status_code == 200, reply.text
            tag = engine.submitted[-1][1].structured_outputs.structural_tag
            assert lark_of(tag) == [LARK["definition"]]
            assert ("get_weather" in json.dumps(tag)) == (choice != chosen)
    engine.template.source = HERMES
    fields = {"type": "grammar", **LARK}
    body = {"input": "Hi", "tools": [{"type": "custom", "name": "run", "format": fields}]}
    assert (await http.post("/v1/responses", json=body)).status_code == 200
    tag = engine.submitted[-1][1].structured_outputs.structural_tag
    assert lark_of(tag) == [LARK["definition"]]
    for wrong, param in (({"syntax": "gbnf"}, "syntax"), ({"definition": ""}, "definition")):
        tools = [{"type": "custom", "name": "run", "format": {**fields, **wrong}}]
        reply = await http.post("/v1/responses", json={"input": "Hi", "tools": tools})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == f"tools[0].format.{param}"


async def test_no_function_has_a_grammar(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    """Fields that are a custom tool's mean nothing in a function."""
    engine.template.source = HERMES
    function = {**WEATHER["function"], "grammar": LARK}
    fields = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    assert (await http.post(URL, json=asked(**fields))).status_code == 200
    assert lark_of(engine.submitted[-1][1].structured_outputs.structural_tag) == []


async def test_the_tools_that_are_allowed_may_be_custom(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source = HERMES
    one = {"type": "custom", "custom": {"name": "run"}}
    allowed = {"mode": "required", "tools": [one]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert (await http.post(URL, json=asked(tool_choice=choice))).status_code == 200
    held = json.dumps(engine.submitted[-1][1].structured_outputs.structural_tag)
    assert "run" in held
    assert "get_weather" not in held


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "custom"}]}, "tools[0].custom", "custom is missing"),
    ({"tools": [tool(name="a b")]}, "tools[0].custom.name", "it must have 1 to 128 letters"),
    (
        {"tools": [tool(format={"type": "json"})]},
        "tools[0].custom.format.type",
        "allowed: text, grammar",
    ),
    (
        {"tools": [grammar(syntax="gbnf", definition="x")]},
        "tools[0].custom.format.grammar.syntax",
        "allowed: lark, regex",
    ),
    (
        {"tools": [grammar(syntax="regex", definition="")]},
        "tools[0].custom.format.grammar.definition",
        "is empty",
    ),
    ({"tool_choice": {"type": "custom"}}, "tool_choice.custom", "custom is missing"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice", "names"),
    (
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom"}]},
            ]
        },
        "messages[1].tool_calls[0].custom",
        "custom is missing",
    ),
]


async def test_a_wrong_custom_tool_is_a_400_that_names_its_field(http: httpx.AsyncClient) -> None:
    for fields, param, said in WRONG:
        reply = await http.post(URL, json=asked(**fields))
        assert reply.status_code == 400, (fields, reply.text)
        error = reply.json()["error"]
        assert error["param"] == param
        assert said in error["message"]
