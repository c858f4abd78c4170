"""Codex's sessions, replayed: tools of types that are no functions come back as calls of these
types, and what the model sees is the whole of what was said."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.chat.custom_tools import InputText
from penstock_gateway.responses.replay import AnswerSoFar
from tests.gateway.agents import codex
from tests.gateway.batches.storing import storing
from tests.gateway.fake_engine import MODEL, FakeEngineClient
from tests.gateway.media import ROWS, SeeingEngine, SeeingGateway, data_uri
from tests.gateway.responses.tool_answers import events_from, said
from tests.met import met

URL = "/v1/responses"
PATCH = '*** Begin Patch\n*** Add File: "é".txt\n+a\\b\t👋\n*** End Patch'


@pytest.fixture
async def http(engine: FakeEngineClient) -> AsyncIterator[httpx.AsyncClient]:
    config = GatewayConfig(
        enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="deepseek_r1"
    )
    app = create_app(engine, config)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


def words(thought: str, text: str, *calls: tuple[str, Any]) -> str:
    told = "".join(
        "<tool_call>\n" + json.dumps({"name": name, "arguments": given}) + "\n</tool_call>"
        for name, given in calls
    )
    return f"<think>{thought}</think>{text}{told}"


async def items_of(http: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of the response that the last event holds. Each item was told of as it came."""
    events = events_from(await http.post(URL, json=body))
    items: list[dict[str, Any]] = events[-1]["response"]["output"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == items
    for place, item in enumerate(items):
        kind = item["type"].removesuffix("_call")
        if kind not in ("custom_tool", "function"):
            continue
        name = "input" if kind == "custom_tool" else "arguments"
        about = [event for event in events if event.get("item_id") == item["id"]]
        assert {event["output_index"] for event in about} == {place}
        assert "".join(event.get("delta", "") for event in about) == item[name] == about[-1][name]
        assert about[-1]["type"] == f"response.{kind}_call_{name}.done"
    return items


@pytest.mark.usefixtures("prepared_here")
async def test_a_session(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    told = codex.beginning("Write hello.txt")
    called = (
        ("apply_patch", {"input": PATCH}),
        ("multi_agent_v1__spawn_agent", {"message": "Look."}),
        ("mcp__files__read", {"path": "a"}),
        ("exec_command", {"cmd": "cat a"}),
    )
    engine.script = said(words("Hm.", "I write it.", *called), seed=3)
    items = await items_of(http, codex.turn(told))
    kinds = [item["type"] for item in items]
    assert kinds == ["reasoning", "message", "custom_tool_call", *["function_call"] * 3]
    calls = items[2:]
    assert calls[0]["input"] == PATCH
    assert [(each["name"], each.get("namespace")) for each in calls] == [
        ("apply_patch", None),
        ("spawn_agent", "multi_agent_v1"),
        ("read", "mcp__files"),
        ("exec_command", None),
    ]

    told += [codex.sent_back(item) for item in items]
    told += [codex.output(call, f"done {place}") for place, call in enumerate(calls)]
    engine.script = said(words("", "Done."))
    items = await items_of(http, codex.turn(told))
    assert items[-1]["content"][0]["text"] == "Done."

    seen, variables = engine.template.calls[-1]
    assert [(each["role"], each["content"]) for each in seen[:4]] == [
        ("system", codex.RULES),
        ("system", codex.SKILLS),
        ("user", codex.PLACE),
        ("user", "Write hello.txt"),
    ]
    history = [(each["function"]["name"], each["function"]["arguments"]) for each in _calls(seen)]
    assert history == list(called)
    assert [(each["role"], each["content"]) for each in seen[-4:]] == [
        ("tool", f"done {place}") for place in range(4)
    ]
    functions = {each["function"]["name"]: each["function"] for each in variables["tools"]}
    assert list(functions) == [
        "exec_command",
        "update_plan",
        "multi_agent_v1__close_agent",
        "multi_agent_v1__spawn_agent",
        "mcp__files__read",
        "apply_patch",
    ]
    assert functions["exec_command"]["parameters"] == codex.EXEC["parameters"]
    assert functions["apply_patch"]["parameters"]["required"] == ["input"]
    assert codex.PATCH["format"]["definition"] in functions["apply_patch"]["description"]
    close = functions["multi_agent_v1__close_agent"]["description"]
    assert close == "Agents that work under this one.\n\nEnds an agent."


def _calls(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call for message in seen for call in message.get("tool_calls", ())]


async def test_the_reply_names_the_tools_that_count(http: httpx.AsyncClient) -> None:
    reply = (await http.post(URL, json=codex.turn(codex.beginning("Hi"), stream=False))).json()
    Response.model_validate(reply)
    assert [each["type"] for each in reply["tools"]] == [
        *["function"] * 2,
        *["namespace"] * 2,
        "custom",
    ]


@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "read", "namespace": "mcp__files"}, "mcp__files__read"),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "apply_patch"}, {"type": "web_search"}],
            },
            "apply_patch",
        ),
    ],
)
async def test_a_tool_of_any_kind_can_be_forced(
    http: httpx.AsyncClient, engine: FakeEngineClient, choice: dict[str, Any], mode: str
) -> None:
    arguments = {"input": PATCH} if mode == "apply_patch" else {"path": "a"}
    engine.script = said(words("Hm.", "", (mode, arguments)), seed=1)
    _, item = await items_of(http, codex.turn(codex.beginning("Hi"), tool_choice=choice))
    assert item.get("input", PATCH) == PATCH
    assert item["type"] == ("custom_tool_call" if mode == "apply_patch" else "function_call")


ACTIONS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    (
        {"type": "local_shell"},
        {"command": ["ls"], "timeout_ms": 5},
        {"action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5}},
        {"output": "a\nb"},
        "a\nb",
    ),
    (
        {"type": "shell", "environment": {"type": "local"}},
        {"commands": ["ls", "false"]},
        {"action": {"commands": ["ls", "false"], "timeout_ms": None, "max_output_length": None}},
        {
            "output": [
                {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "no", "outcome": {"type": "exit", "exit_code": 1}},
                {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
            ]
        },
        "a\nno\nexit code 1\ntimed out",
    ),
    (
        {"type": "apply_patch"},
        {"type": "create_file", "path": "a", "diff": "+x"},
        {"operation": {"type": "create_file", "path": "a", "diff": "+x"}},
        {"status": "completed"},
        "completed",
    ),
]


@pytest.mark.parametrize(("tool", "arguments", "holds", "result", "shown"), ACTIONS)
async def test_tools_that_the_api_defines_and_the_client_runs(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    tool: dict[str, Any],
    arguments: dict[str, Any],
    holds: dict[str, Any],
    result: dict[str, Any],
    shown: str,
) -> None:
    engine.script = said(words("", "", (tool["type"], arguments)))
    client = openai.AsyncOpenAI(api_key="k", base_url="http://gateway/v1", http_client=http)
    tools: Any = [tool]
    async with client.responses.stream(model=MODEL, input="Hi", tools=tools) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    call = final.output[-1].model_dump(exclude_unset=True)
    assert call["type"] == f"{tool['type']}_call"
    assert {key: call[key] for key in holds} == holds

    called = {"call_id": call["call_id"]}
    if tool["type"] == "local_shell":
        called = {"id": call["call_id"]}  # It has no other name.
    back: Any = [
        {"role": "user", "content": "Hi"},
        call,
        {"type": f"{tool['type']}_call_output", **called, **result},
    ]
    await client.responses.create(model=MODEL, input=back, tools=tools)
    seen, variables = engine.template.calls[-1]
    assert [each["function"] for each in _calls(seen)] == [
        {"name": tool["type"], "arguments": _said(arguments, holds)}
    ]
    assert seen[-1] == {"role": "tool", "tool_call_id": call["call_id"], "content": shown}
    (function,) = variables["tools"]
    assert function["function"]["name"] == tool["type"]


def _said(arguments: dict[str, Any], holds: dict[str, Any]) -> dict[str, Any]:
    """The arguments, and what an item has of them without being said."""
    return {**arguments, **({"env": {}} if "env" in holds.get("action", {}) else {})}


@pytest.mark.usefixtures("prepared_here")
async def test_calls_of_every_kind_are_stored_and_told_again(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    engine.template.source = "{{ tools }}<tool_call> name </think>"
    calls = [("apply_patch", {"input": PATCH}), ("mcp__files__read", {"path": "a"})]
    calls += [(tool["type"], arguments) for tool, arguments, *_ in ACTIONS[:2]]
    engine.script = said(words("Hm.", "Look: ", *calls), seed=2)
    tools = [*codex.TOOLS, *(tool for tool, *_ in ACTIONS[:2])]
    async with storing(tmp_path, engine, stored_response_hours=1) as gateway:
        body = codex.turn(codex.beginning("Hi"), store=True, tools=tools)
        answer = await gateway.http.post(URL, json=body)
        whole = events_from(answer)[-1]["response"]
        kinds = ["reasoning", "message", "custom_tool_call", "function_call"]
        kinds += ["local_shell_call", "shell_call"]
        assert [each["type"] for each in whole["output"]] == kinds
        again = events_from(await gateway.http.get(f"{URL}/{whole['id']}?stream=true"))
        assert again[-1]["response"]["output"] == whole["output"]
        done = [each["item"] for each in again if each["type"] == "response.output_item.done"]
        assert done == whole["output"]
        so_far = AnswerSoFar()
        for cut in range(0, len(answer.content), 700):
            so_far.take(answer.content[cut : cut + 700])
        assert json.loads(msgspec.json.encode(so_far.items)) == whole["output"]

        told = [codex.output(each, "done") for each in whole["output"][2:-1]]
        engine.script = said(words("", "Done."))
        body = codex.turn(told, previous_response_id=whole["id"], tools=tools)
        events_from(await gateway.http.post(URL, json=body))
        seen, _ = engine.template.calls[-1]
        history = [
            (each["function"]["name"], each["function"]["arguments"]) for each in _calls(seen)
        ]
        assert [name for name, _ in history] == [name for name, _ in calls]
        assert history[0][1] == {"input": PATCH}


async def test_half_a_character_in_an_action_is_shown_as_none(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    tool, arguments, *_ = ACTIONS[1]
    engine.script = said(words("", "", (tool["type"], {**arguments, "commands": ["echo \ud83d"]})))
    item = (await items_of(http, codex.turn(codex.beginning("Hi"), tools=[tool])))[-1]
    assert item["action"]["commands"] == ["echo ?"]


async def test_a_call_that_is_cut_short_is_incomplete(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    whole = words("", "", ("apply_patch", {"input": PATCH}))
    engine.script = said(whole[: whole.index("End Patch")], finish="length")
    item = (await items_of(http, codex.turn(codex.beginning("Hi"))))[-1]
    assert (item["status"], item["input"]) == ("incomplete", PATCH[: PATCH.index("End Patch")])
    back = [*codex.beginning("Hi"), item, codex.output(item, "cut")]
    assert (await http.post(URL, json=codex.turn(back))).status_code == 200


@pytest.mark.usefixtures("prepared_here")
async def test_what_other_servers_tools_did_is_left_out(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    """A session that began elsewhere goes on here, and tools that came with an item count."""
    brought = {"type": "additional_tools", "role": "developer", "tools": [codex.EXEC, codex.MCP]}
    others = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}},
        {"type": "tool_search_call", "arguments": {"query": "x"}, "execution": "client"},
        {"type": "mcp_list_tools", "id": "m", "server_label": "x", "tools": [{"name": "f"}]},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "screenshot"}},
        {"type": "tool_search_output", "tools": [codex.MCP], "call_id": "c"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"type": "item_reference", "id": "rs_2"},
    ]
    items = [codex.beginning("Hi")[-1], *others, brought, brought]
    body = codex.turn(items, tools=[codex.SEARCH], stream=False)
    reply = await http.post(URL, json=body)
    assert reply.status_code == 200, reply.text
    seen, variables = engine.template.calls[-1]
    assert [each["content"] for each in seen] == ["Hi"]
    names = [each["function"]["name"] for each in variables["tools"]]
    assert names == ["mcp__files__read", "exec_command"]


async def test_a_picture_that_a_tool_shows() -> None:
    """It comes behind all results, as the user's: there every template has a place for it."""
    picture = {"type": "input_image", "image_url": data_uri(), "detail": "auto"}
    calls = [
        {"type": "function_call", "call_id": "1", "name": "view", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "2", "name": "draw", "input": "x"},
    ]
    outputs = [
        {
            "type": "function_call_output",
            "call_id": "1",
            "output": [{"type": "input_text", "text": "Here:"}, picture],
        },
        {"type": "custom_tool_call_output", "call_id": "2", "output": [picture]},
    ]
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "text", "text": "Hm."}]}
    question = {"role": "user", "content": "Now?"}
    engine = SeeingEngine()
    both = '{"name": "view", "arguments": {}}\n{"name": "draw", "arguments": {"input": "x"}}'
    async with SeeingGateway(engine) as gateway:
        for more, rest in (
            ([], ""),
            ([question], "user:Now?;"),
            ([thought, *calls], f"assistant:{both};"),
        ):
            body = {"input": [question, *calls, *outputs, *more]}
            reply = await gateway.client.post(URL, json=body)
            assert reply.status_code == 200, reply.text
            shown = f"user:Now?;assistant:{both};tool:Here:;tool:;user:<image>;user:<image>;"
            expected = (shown + rest).replace("<image>", "<image>" * ROWS)
            assert engine.submitted[-1][0] == engine.text.tokenizer.encode(expected)
            media = engine.media[-1]
            assert media is not None
            assert [span.item for span in media.spans] == [0, 0]
        outputs[0]["output"] = [{**picture, "image_url": "data:image/png;base64,AAAA"}]
        body = {"input": [question, *calls, *outputs]}
        error = (await gateway.client.post(URL, json=body)).json()["error"]
        assert error["param"].startswith("input[3].output"), error


@given(
    st.text() | st.text('"\\\n\té', min_size=4, max_size=20),
    st.lists(st.integers(0, 400)) | st.lists(st.integers(8, 40), min_size=5),
    st.booleans(),
    st.sampled_from(["input", "patch"]),
)
def test_an_input_is_read_whole_however_it_comes(
    text: str, cuts: list[int], ascii: bool, name: str
) -> None:
    text = text.encode("utf-8", "replace").decode()
    whole = json.dumps({name: text}, ensure_ascii=ascii)
    places = sorted({cut for cut in cuts if cut < len(whole)} | {0, len(whole)})
    met("cut within an escape", any(whole[:at].endswith("\\") for at in places))
    reader = InputText()
    pieces = [reader.feed(whole[a:b]) for a, b in pairwise(places)]
    assert "".join(pieces) + reader.rest() == text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"input": "a", "more": 1}', "a"),
        ('{"more": 1, "input": "a"}', "a"),
        ('{"input": "a', "a"),
        ('{"input": 3}', '{"input": 3}'),
        ("*** Begin Patch", "*** Begin Patch"),
        ('"a"', "a"),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        ('{"input": "\\ud83d"}', "?"),
        ('{"input": "a\nb"}', "a\nb"),
        ("", ""),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_arguments_that_are_not_as_they_should_be(arguments: str, expected: str) -> None:
    reader = InputText()
    assert reader.feed(arguments) + reader.rest() == expected
