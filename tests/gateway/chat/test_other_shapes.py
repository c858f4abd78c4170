"""Tools and calls in shapes that clients of other APIs write in chats: each means what the usual
shape does."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.fake_engine import CONTEXT, MODEL, FakeEngineClient

CHAT = "/v1/chat/completions"
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
ADD = {"name": "add", "parameters": {"type": "object", "properties": {}}, "strict": None}
TOOLS = [{"type": "function", "function": LOOK}, {"type": "function", "function": ADD}]
USER = {"role": "user", "content": "Hi"}
NAMED = {"type": "function", "function": {"name": "look"}}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "Yes."}


def called(arguments: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [call]}, RESULT]}


def schema(**name: str) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {**name, "schema": {}}}}


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # As for Responses: Cursor's.
    ({"tools": [{"type": "function", **LOOK}, {"type": "function", **ADD}]}, {"tools": TOOLS}),
    ({"tools": [LOOK, ADD]}, {"tools": TOOLS}),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "look"}},
        {"tools": TOOLS, "tool_choice": NAMED},
    ),
    *(
        ({"tools": TOOLS, "tool_choice": {"type": word}}, {"tools": TOOLS, "tool_choice": word})
        for word in ("auto", "none", "required")
    ),
    # As Ollama has them.
    (called({"at": [1, "x"]}), called('{"at":[1,"x"]}')),
    (called({}), called("")),
    (schema(), schema(name="x")),
    ({"model": ""}, {"model": MODEL}),
    # As LM Studio and llama-server have it: as many as there is room for.
    ({"max_tokens": -1}, {}),
    ({"max_completion_tokens": -1}, {}),
    # OpenAI's range begins with 0: no token but the likeliest.
    ({"top_p": 0}, {"top_p": 1e-9}),
]


@pytest.mark.parametrize(("fields", "usual"), SAME)
async def test_it_means_the_same(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    fields: dict[str, Any],
    usual: dict[str, Any],
) -> None:
    for sent in (fields, usual):
        reply = await http.post(CHAT, json={"messages": [USER], "seed": 5, **sent})
        assert reply.status_code == 200, reply.text
    (_, one, _), (_, other, _) = engine.submitted
    assert one == other
    (seen, variables), (usually, others) = engine.template.calls
    assert seen == usually
    assert variables.get("tools") == others.get("tools")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search", "name": "look"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": TOOLS, "tool_choice": {"type": "any_of"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
    ],
)
async def test_what_has_no_meaning_is_refused(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    reply = await http.post(CHAT, json={"messages": [USER], **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_of_completions_too(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    sent = {"prompt": "Hi", "max_tokens": -1}
    assert (await http.post("/v1/completions", json=sent)).status_code == 200
    assert engine.submitted[0][1].max_tokens == CONTEXT - 2
