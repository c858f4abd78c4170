"""Tools that are strict, where the model chooses whether to call them: a grammar holds their calls
to their schemas, on each API; without any, there is no grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import httpx
import msgspec
import pytest

from penstock.config.settings import GatewayConfig
from penstock.errors import InvalidRequest
from penstock_gateway.app import create_app
from penstock_gateway.chat import answer_grammar
from tests.dialects.anthropic.asking import said
from tests.gateway.fake_engine import MODEL, FakeEngineClient

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ASKED = [{"role": "user", "content": "Hi"}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>'
ANY: dict[str, Any] = {"type": "object"}


async def chat(http: httpx.AsyncClient, **more: Any) -> Any:
    tools = [
        {"type": "function", "function": {"name": "now", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "look", "parameters": SCHEMA, **more}},
    ]
    return await http.post("/v1/chat/completions", json={"messages": ASKED, "tools": tools})


async def responses(http: httpx.AsyncClient, **more: Any) -> Any:
    tools = [
        {"type": "function", "name": "now", "parameters": SCHEMA},
        {"type": "function", "name": "look", "parameters": SCHEMA, **more},
    ]
    body = {"model": MODEL, "input": ASKED, "tools": tools, "store": False}
    return await http.post("/v1/responses", json=body)


async def messages(http: httpx.AsyncClient, **more: Any) -> Any:
    tools = [
        {"name": "now", "input_schema": SCHEMA},
        {"name": "look", "input_schema": SCHEMA, **more},
    ]
    body = {"model": MODEL, "max_tokens": 64, "messages": ASKED, "tools": tools}
    return await http.post("/v1/messages", json=body)


APIS = [chat, responses, messages]


def served(engine: FakeEngineClient, **config: Any) -> httpx.AsyncClient:
    given = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3", **config}
    app = create_app(cast(Any, engine), GatewayConfig(**given))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


def held(engine: FakeEngineClient) -> list[Any] | None:
    """The schemas that calls are held to, of `now` and `look`; None: there is no grammar."""
    asked = engine.submitted[-1][1].structured_outputs
    if asked is None:
        return None
    tag = asked.structural_tag["format"]
    assert tag["type"] == "text_with_tags"
    return [node["json_schema"] for node in tag["shared"] if "json_schema" in node]


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """The log has told of nothing yet."""
    answer_grammar._say_unheld.cache_clear()
    yield
    answer_grammar._say_unheld.cache_clear()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "strict has no effect" in line]


@pytest.mark.parametrize("api", APIS)
async def test_only_strict_tools_are_held(engine: FakeEngineClient, api: Any) -> None:
    engine.script = said(f"<think>Hm.</think>{CALL}")
    async with served(engine) as http:
        for more in ({}, {"strict": False}):
            assert (await api(http, **more)).status_code == 200
            assert held(engine) is None
        reply = await api(http, strict=True)
    assert held(engine) == [ANY, SCHEMA]
    assert "Oslo" in reply.text
    assert "tool_call>" not in reply.text


@pytest.mark.parametrize(
    ("level", "more", "expected"),
    [
        ("function", {}, [ANY]),
        ("function", {"strict": True}, [ANY, SCHEMA]),
        ("parameter", {}, [SCHEMA, SCHEMA]),
    ],
)
async def test_the_server_may_ask_for_more(
    engine: FakeEngineClient, level: Any, more: Any, expected: Any
) -> None:
    engine.script = said(CALL)
    async with served(engine, tool_strict_level=level) as http:
        assert (await chat(http, **more)).status_code == 200
    assert held(engine) == expected


async def test_beside_a_schema_for_the_answer(engine: FakeEngineClient) -> None:
    engine.script = said(CALL)
    tool = {"name": "look", "parameters": SCHEMA, "strict": True}
    answer = {"type": "object", "properties": {"age": {"type": "integer"}}}
    async with served(engine) as http:
        reply = await http.post(
            "/v1/chat/completions",
            json={
                "messages": ASKED,
                "tools": [{"type": "function", "function": tool}],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": answer},
                },
            },
        )
    assert reply.json()["choices"][0]["message"]["tool_calls"]
    said_of_it = json.dumps(engine.submitted[-1][1].structured_outputs.structural_tag)
    assert json.dumps(SCHEMA) in said_of_it
    assert json.dumps(answer) in said_of_it


@pytest.mark.parametrize("parser", ["auto", "json"])
async def test_where_the_format_is_not_known_the_log_says_so(
    engine: FakeEngineClient, parser: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script = said("Hello.")
    async with served(engine, tool_call_parser=parser) as http:
        for _ in range(2):
            assert (await chat(http, strict=True)).status_code == 200
    assert held(engine) is None
    assert len(told(caplog)) == 1


async def test_a_schema_that_the_format_cannot_express(
    engine: FakeEngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script = said("Hello.")
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}}}
    async with served(engine, tool_call_parser="qwen3_coder") as http:
        assert (await chat(http, strict=True, parameters=pattern)).status_code == 200
    (line,) = told(caplog)
    assert "the tool's schema" in line


@pytest.mark.parametrize(
    ("complaint", "param", "says"),
    [
        (
            "at /<tool>/1/properties/city: bad",
            "tools[1].function.parameters",
            "tools[1].function.parameters, the schema of look: at /properties/city: bad",
        ),
        ("it has too many bytes", "tools", "tools: it has too many bytes"),
    ],
)
async def test_an_error_in_a_schema_names_the_tool(
    engine: FakeEngineClient, complaint: str, param: str, says: str
) -> None:
    engine.refusal = InvalidRequest(complaint, param="structured_outputs")
    async with served(engine) as http:
        reply = await chat(http, strict=True)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["message"]) == (param, says)


@pytest.mark.usefixtures("prepared_here")
async def test_schemas_too_large_for_one_grammar_refuse_no_request(
    engine: FakeEngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent's tools are longer in the model's own format than as JSON."""
    limits = msgspec.structs.replace(engine.welcome.limits, max_grammar_bytes=14_000)
    engine.welcome = msgspec.structs.replace(engine.welcome, limits=limits)
    engine.script = said(CALL)
    names = {f"field_{n}": {"type": "string", "description": "x" * 20} for n in range(9)}
    wide = {"type": "object", "properties": names}
    tools = [{"name": f"tool_{n}", "parameters": wide, "strict": True} for n in range(16)]
    body = {
        "messages": ASKED,
        "tools": [{"type": "function", "function": tool} for tool in tools],
    }
    async with served(engine) as http:
        reply = await http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert held(engine) == [ANY], "of all tools, the names"
        (line,) = told(caplog)
        assert "longer than max_grammar_bytes" in line
        engine.script = said(json.dumps([{"name": "tool_3", "parameters": {}}]))
        body["tool_choice"] = "required"
        reply = await http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200
    forced = engine.submitted[-1][1].structured_outputs.definition().text
    assert '"const": "tool_3"' in forced
    assert len(forced) <= limits.max_grammar_bytes
    (call,) = reply.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "tool_3"
