"""Tools, choices and schemas that are refused over HTTP, by name."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from penstock.errors import InvalidRequest
from tests.gateway.chat.test_tools import said
from tests.gateway.chat.tool_calls import NOW, URL, WEATHER, allow, body, choice_of
from tests.gateway.fake_engine import FakeEngineClient


def _tool(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **changes}}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tool_choice": "sometimes"}, "tool_choice", "auto, required, none"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "needs tools"),
        ({"tool_choice": {"function": {"name": "x"}}}, "tool_choice", "get_weather"),
        ({"tools": [_tool(name="")]}, "tools[0].function.name", "1 to 128"),
        ({"tools": [_tool(name="a b")]}, "tools[0].function.name", "letters"),
        ({"tools": [_tool(name="x" * 129)]}, "tools[0].function.name", "1 to 128"),
        ({"tools": [_tool(), _tool()]}, "tools[1].function.name", "another tool"),
        ({"tools": [_tool(name=f"f{i}") for i in range(4097)]}, "tools", "at most 4096"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "missing"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "allowed_tools"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools", "missing"),
        (allow("get_weather", mode="none"), "tool_choice.allowed_tools.mode", "auto, required"),
        (allow(), "tool_choice.allowed_tools.tools", "at least one"),
        (allow("now", "x"), "tool_choice.allowed_tools.tools[1]", '["get_weather","now"]'),
        (
            allow("now", type="mcp"),
            "tool_choice.allowed_tools.tools[0].type",
            "allowed: function",
        ),
        ({"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0].type", "function"),
        ({"tools": [{"type": "web"}]}, "tools[0].type", "function"),
        ({"functions": [{"name": "f"}]}, "functions", "send tools"),
        ({"function_call": "auto"}, "function_call", "send tool_choice"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort", "low, medium"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "--chat-template"),
    ],
)
async def test_refused(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str, says: str
) -> None:
    response = await http.post(URL, json=body(**fields))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        (
            {"tools": [{"type": "retrieval", "retrieval": {"name": "f"}}]},
            "tools[0].type",
            'tools[0].type is "retrieval"; allowed: function, custom',
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "function is missing"),
        (
            {"tool_choice": {"type": "retrieval"}},
            "tool_choice",
            "an object with type retrieval",
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"tools": [{"type": "retrieval"}]},
                }
            },
            "tool_choice.allowed_tools.tools[0].type",
            'is "retrieval"; allowed: function, custom',
        ),
    ],
)
async def test_of_a_tool_of_another_type_it_is_the_type_that_is_wrong(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str, says: str
) -> None:
    response = await http.post(URL, json=body(**fields))
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], says in error["message"]) == (param, True)


@pytest.mark.parametrize("kind", ["array", "string", "integer", ["string", "null"]])
@pytest.mark.parametrize("choice", ["required", "auto", "named"])
async def test_parameters_that_are_no_object_are_refused_on_every_api(
    http: httpx.AsyncClient, kind: Any, choice: str
) -> None:
    schema = {"type": kind}
    chosen: Any = choice
    if choice == "named":
        chosen = {"type": "function", "function": {"name": "f"}}
    refused = {
        "/v1/chat/completions": (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
            "tools[0].function.parameters",
            chosen,
        ),
        "/v1/responses": (
            {"tools": [{"type": "function", "name": "f", "parameters": schema}], "input": "Hi"},
            "tools[0].parameters",
            {"type": "function", "name": "f"} if choice == "named" else choice,
        ),
        "/v1/messages": (
            {"tools": [{"name": "f", "input_schema": schema}], "max_tokens": 9},
            "tools[0].input_schema",
            {"auto": {"type": "auto"}, "required": {"type": "any"}}.get(
                choice, {"type": "tool", "name": "f"}
            ),
        ),
        "/api/chat": (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
            "tools[0].function.parameters",
            None,
        ),
    }
    for path, (fields, param, asked) in refused.items():
        said = {"messages": [{"role": "user", "content": "Hi"}], **fields}
        if "input" in fields:
            del said["messages"]
        if asked is not None:
            said["tool_choice"] = asked
        response = await http.post(path, json=said)
        assert response.status_code == 400, (path, response.text)
        assert f"{param}, the schema of f, has type" in response.text
        assert "allowed: object" in response.text


async def test_of_an_object_or_something_else_a_forced_call_is_the_object(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.script = said('[{"name": "f", "parameters": {}}]')
    maybe = {"name": "f", "parameters": {"type": ["object", "null"], "properties": {}}}
    await choice_of(http, tools=[{"type": "function", "function": maybe}], tool_choice="required")
    (given,) = engine.submitted[0][1].structured_outputs.json["items"]["anyOf"]
    assert given["properties"]["parameters"]["type"] == "object"


OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("choice", "complaint", "param", "says"),
    [
        (
            "required",
            "at /items/anyOf/1/properties/parameters/properties/city: bad",
            "tools[1].function.parameters",
            "tools[1].function.parameters, the schema of get_weather: at /properties/city: bad",
        ),
        (
            "required",
            "at /items/anyOf/2: bad",
            "tools[2].function.parameters",
            "tools[2].function.parameters, the schema of now: bad",
        ),
        ("required", "it has too many bytes", "tool_choice", "tool_choice: it has too many bytes"),
        (
            {"type": "function", "function": {"name": "now"}},
            "bad",
            "tools[2].function.parameters",
            "tools[2].function.parameters, the schema of now: bad",
        ),
        (
            allow("get_weather", mode="required")["tool_choice"],
            "bad",
            "tools[1].function.parameters",
            "the schema of get_weather: bad",
        ),
        (
            allow("now", "get_weather", mode="required")["tool_choice"],
            "at /items/anyOf/1: bad",
            "tools[2].function.parameters",
            "the schema of now: bad",
        ),
    ],
)
async def test_an_error_in_a_schema_names_the_tool(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    choice: Any,
    complaint: str,
    param: str,
    says: str,
) -> None:
    engine.refusal = InvalidRequest(complaint, param="structured_outputs")
    tools = [OTHER, WEATHER, NOW]
    response = await http.post(URL, json=body(tools=tools, tool_choice=choice))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]
    if choice == "required":
        flat = [{"type": "function", **tool["function"]} for tool in tools]
        fields = {"input": "Hi", "tools": flat, "tool_choice": choice}
        error = (await http.post("/v1/responses", json=fields)).json()["error"]
        assert error["param"] == param.replace(".function", "")
        assert says.replace(".function", "") in error["message"]


@pytest.mark.parametrize(
    ("complaint", "param", "says"),
    [
        (
            "at /<tool>/1: at /properties/city: bad",
            "tools[1].function.parameters",
            "tools[1].function.parameters, the schema of get_weather: at /properties/city: bad",
        ),
        ("at /<tool>/0: bad", "tools[0].function.parameters", "the schema of other: bad"),
        (
            # The same tools with another name of the arguments come after all of them.
            "at /<tool>: at /anyOf/4/properties/parameters/properties/city: bad",
            "tools[1].function.parameters",
            "the schema of get_weather: at /properties/city: bad",
        ),
        ("at /<tool>: bad", "tools", "tools: at /<tool>: bad"),
        ("at /items/anyOf/1: bad", "response_format", "response_format: at /items/anyOf/1: bad"),
        ("at /properties/tools/0: bad", "response_format", "response_format: at /properties/to"),
        ("bad", "response_format", "response_format: bad"),
    ],
)
async def test_beside_tools_an_error_in_a_schema_names_its_own_field(
    http: httpx.AsyncClient, engine: FakeEngineClient, complaint: str, param: str, says: str
) -> None:
    engine.refusal = InvalidRequest(f"structured_outputs: {complaint}", param="structured_outputs")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}}
    tools = [OTHER, WEATHER, NOW]
    response = await http.post(URL, json=body(tools=tools, response_format=form))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(says) or says in error["message"]


async def test_many_tools_and_dotted_names_are_taken(http: httpx.AsyncClient) -> None:
    """As agents with several MCP servers send them, whose names have their server's in front."""
    tools = [_tool(name=f"server.tool-{number}_{'x' * 60}") for number in range(200)]
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools}
    reply = await http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
