"""Qwen2.5-Coder calling tools in an agent's loop, until it answers in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from testing.serving import Server
from tests.system.releases.files import QWEN_CODER

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MOST_TURNS = 4
ASKED: dict[str, Any] = {"temperature": 0, "max_tokens": 100}


def tool(name: str, description: str, **fields: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": said} for key, said in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


class Task(NamedTuple):
    """called: each call's name and arguments.  result: of every call.  said: part of the answer."""

    tools: list[dict[str, Any]]
    asked: str
    called: tuple[str, dict[str, str]]
    result: str
    said: str


WEATHER = Task(
    [tool("get_weather", "Get the current weather of a city", city="its name")],
    "What is the weather in Paris?",
    ("get_weather", {"city": "Paris"}),
    '{"temperature": "18 C", "sky": "sunny"}',
    "18 C",
)
TESTS = Task(
    [
        tool("read_file", "Read a file and return its text", path="its path"),
        tool("run_tests", "Run the tests of a folder", folder="its path"),
    ],
    "Run the tests of the folder tests, and tell me how many failed.",
    ("run_tests", {"folder": "tests"}),
    "2 failed, 8 passed",
    "2 failed",
)


@pytest.fixture(scope="module")
def coder() -> Iterator[Server]:
    with Server(str(QWEN_CODER.file()), "--num-kv-blocks", "512") as server:
        yield server


@pytest.fixture(scope="module")
def client(coder: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{coder.url}/v1", api_key="none", timeout=300) as client:
        yield client


def whole(client: openai.OpenAI, **asked: Any) -> tuple[str, list[tuple[str, str, str]]]:
    """The answer's text, and id, name and arguments of each call."""
    message = client.chat.completions.create(**asked).choices[0].message
    calls = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or []]
    return message.content or "", calls


def streamed(client: openai.OpenAI, **asked: Any) -> tuple[str, list[tuple[str, str, str]]]:
    """The same from a stream."""
    text, parts = "", dict[int, list[str]]()
    for chunk in client.chat.completions.create(**asked, stream=True):
        for delta in (choice.delta for choice in chunk.choices):
            text += delta.content or ""
            for call in delta.tool_calls or []:
                said = parts.setdefault(call.index, ["", "", ""])
                said[0] = call.id or said[0]
                said[1] += call.function.name or ""
                said[2] += call.function.arguments or ""
    return text, [(said[0], said[1], said[2]) for said in parts.values()]


def worked(client: openai.OpenAI, model: str, task: Task, answered: Any) -> list[Any]:
    """What was called, as name and arguments, turn by turn, and last the answer's text."""
    messages: list[Any] = [{"role": "user", "content": task.asked}]
    done: list[Any] = []
    for _ in range(MOST_TURNS):
        text, calls = answered(client, model=model, messages=messages, tools=task.tools, **ASKED)
        if not calls:
            return [*done, text]
        shown = [
            {"id": call, "type": "function", "function": {"name": name, "arguments": given}}
            for call, name, given in calls
        ]
        messages.append({"role": "assistant", "content": text or None, "tool_calls": shown})
        for call, name, given in calls:
            done.append((name, json.loads(given)))
            messages.append({"role": "tool", "tool_call_id": call, "content": task.result})
    pytest.fail(f"no answer in {MOST_TURNS} turns: {messages}")


@pytest.mark.parametrize("task", [WEATHER, TESTS], ids=["weather", "tests"])
def test_it_calls_a_tool_and_answers_by_its_result(
    coder: Server, client: openai.OpenAI, task: Task
) -> None:
    """Streaming changes neither calls nor texts."""
    *called, text = worked(client, coder.model, task, whole)
    assert called
    assert all(call == task.called for call in called)
    assert task.said in text
    assert worked(client, coder.model, task, streamed) == [*called, text]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "run_tests"}}]
)
def test_a_call_that_is_required_keeps_to_its_schema(
    coder: Server, client: openai.OpenAI, choice: Any
) -> None:
    messages = [{"role": "user", "content": TESTS.asked}]
    asked = {"model": coder.model, "messages": messages, "tools": TESTS.tools}
    _, calls = whole(client, **asked, tool_choice=choice, **ASKED)
    ((_, name, given),) = calls
    assert (name, list(json.loads(given))) == ("run_tests", ["folder"])


def test_it_calls_a_tool_in_anthropics_messages(coder: Server) -> None:
    (function,) = (each["function"] for each in WEATHER.tools)
    offered = {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }
    messages = [{"role": "user", "content": WEATHER.asked}]
    body = {"model": coder.model, "messages": messages, "tools": [offered], **ASKED}
    reply = httpx.post(f"{coder.url}/v1/messages", json=body, timeout=300).json()
    assert reply["stop_reason"] == "tool_use", reply
    (call,) = (each for each in reply["content"] if each["type"] == "tool_use")
    assert (call["name"], call["input"]) == WEATHER.called
