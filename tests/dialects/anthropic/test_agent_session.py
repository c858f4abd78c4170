"""A coding agent's session, replayed: every request is taken, and every event is one that the SDK
knows; what the model sees is the whole of what was said."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.dialects.anthropic import agent_session as agent
from tests.dialects.anthropic.asking import said
from tests.gateway.fake_engine import FakeEngineClient

KNOWN: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
CALLS = (
    ("Read", {"file_path": "/work/main.py"}),
    ("Bash", {"command": "pytest -q", "timeout": 60000}),
)


def words(thought: str, text: str, *calls: tuple[str, dict[str, Any]]) -> str:
    told = "".join(
        "<tool_call>\n" + json.dumps({"name": name, "arguments": given}) + "\n</tool_call>"
        for name, given in calls
    )
    return f"<think>{thought}</think>{text}{told}"


@pytest.fixture
async def http(engine: FakeEngineClient) -> AsyncIterator[httpx.AsyncClient]:
    limits = msgspec.structs.replace(engine.welcome.limits, max_model_len=65_536)
    engine.welcome = msgspec.structs.replace(engine.welcome, limits=limits)
    config = GatewayConfig(
        enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="deepseek_r1"
    )
    app = create_app(engine, config)  # type: ignore[arg-type]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://gateway", headers=agent.HEADERS
    ) as client:
        yield client


async def streamed(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """The message that its events make, as an agent puts it together."""
    answer = await http.post(agent.PATH, json=body)
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = {}
    for block in answer.text.strip().split("\n\n"):
        event = json.loads(block.split("data: ", 1)[1])
        KNOWN.validate_python(event, strict=True)
        take(message, event)
    Message.model_validate(message, strict=True)
    return message


def take(message: dict[str, Any], event: dict[str, Any]) -> None:
    match event["type"]:
        case "message_start":
            message |= event["message"]
        case "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(dict(event["content_block"]))
        case "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                block["json"] = block.get("json", "") + delta["partial_json"]
            else:
                name = delta["type"].removesuffix("_delta")
                block[name] = block.get(name, "") + delta[name]
        case "content_block_stop":
            block = message["content"][event["index"]]
            if block["type"] == "tool_use":
                block["input"] = json.loads(block.pop("json"))
        case "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]


@pytest.mark.usefixtures("prepared_here")
async def test_a_session(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.script = said("<think></think>ok")
    first = await http.post(agent.PATH, json=agent.warm_up())
    Message.model_validate(first.json(), strict=True)
    await streamed(http, agent.title("Why do the tests fail?"))

    said_so_far = [agent.asked("Why do the tests fail?")]
    counted = {k: v for k, v in agent.turn(said_so_far).items() if k in COUNTED}
    count = await http.post(agent.COUNT, json=counted)
    MessageTokensCount.model_validate(count.json(), strict=True)

    engine.script = said(words("I look first.", "Let me look.", *CALLS))
    reply = await streamed(http, agent.turn(said_so_far))
    assert reply["usage"]["input_tokens"] == count.json()["input_tokens"]
    assert reply["stop_reason"] == "tool_use"
    kinds = [block["type"] for block in reply["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    calls = reply["content"][2:]
    assert [(call["name"], call["input"]) for call in calls] == list(CALLS)

    said_so_far += [
        {"role": "assistant", "content": reply["content"]},
        agent.results(
            agent.result(calls[0], [{"type": "text", "text": "assert False\n"}]),
            agent.result(calls[1], "1 failed", is_error=True),
            {"type": "text", "text": "<system-reminder>\nThe file changed.\n</system-reminder>"},
        ),
    ]
    edit = ("Edit", {"file_path": "a", "old_string": "False", "new_string": "True 👋"})
    engine.script = said(words("Now I know.", "It asserts False.", edit))
    reply = await streamed(http, agent.turn(said_so_far))
    assert reply["content"][-1]["input"] == edit[1]
    said_so_far += [
        {"role": "assistant", "content": reply["content"]},
        agent.results(agent.result(reply["content"][-1], "")),
    ]
    engine.script = said(words("Done.", "Mended."))
    reply = await streamed(http, agent.turn(said_so_far))
    assert reply["stop_reason"] == "end_turn"
    assert reply["content"][-1]["text"].strip() == "Mended."

    seen, variables = engine.template.calls[-1]
    roles = [message["role"] for message in seen]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user", "assistant", "tool"]
    assert agent.RULES * 60 in str(seen[0]["content"])
    assert [each["content"] for each in seen[3:5]] == ["assert False\n", "1 failed"]
    assert [each["id"] for each in seen[2]["tool_calls"]] == [call["id"] for call in calls]
    names = [each["function"]["name"] for each in variables["tools"]]
    assert names == [each["name"] for each in agent.TOOLS]
    parameters = [each["function"]["parameters"] for each in variables["tools"]]
    assert parameters == [each["input_schema"] for each in agent.TOOLS]


COUNTED = ("model", "messages", "system", "tools", "thinking")


@pytest.mark.usefixtures("prepared_here")
async def test_a_turn_that_is_broken_off_goes_on(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    """Somebody pressed escape: the call has a result that says so, and a new question beside it."""
    engine.script = said(words("", "Let me look.", CALLS[1]))
    messages = [agent.asked("Run the tests.")]
    reply = await streamed(http, agent.turn(messages))
    call = reply["content"][-1]
    messages += [
        {"role": "assistant", "content": reply["content"]},
        agent.results(
            agent.result(call, "The user doesn't want to proceed.", is_error=True),
            {"type": "text", "text": "[Request interrupted by user for tool use]"},
            {"type": "text", "text": "Use make instead."},
        ),
    ]
    engine.script = said(words("", "I use make."))
    reply = await streamed(http, agent.turn(messages, thinking={"type": "disabled"}))
    assert reply["content"][-1]["text"].strip() == "I use make."
    seen, _ = engine.template.calls[-1]
    assert [message["role"] for message in seen][-2:] == ["tool", "user"]
    assert "Use make instead." in str(seen[-1]["content"])
