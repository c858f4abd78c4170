"""Tool calls by OpenAI's SDK, and templates, against a real system with the default model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from testing.serving import Server, ServerFailed

pytestmark = [pytest.mark.timeout(400)]

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 12},
                    "unit": {"$ref": "#/$defs/unit"},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
                "$defs": {"unit": {"enum": ["celsius", "fahrenheit"]}},
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"enum": [1, 2, 3]}, "b": {"type": "boolean"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
]
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", timeout=300, max_retries=0
    ) as client:
        yield client


def check_call(name: str, arguments: str) -> None:
    value = json.loads(arguments)
    if name == "add":
        assert value["a"] in (1, 2, 3)
        assert isinstance(value["b"], bool)
    else:
        assert name == "get_weather"
        assert len(value["city"]) <= 12
        assert value["unit"] in ("celsius", "fahrenheit")
    assert len(value) == 2


def test_an_error_in_a_schema_names_its_tool(sdk: openai.OpenAI, server: Server) -> None:
    bad = {"type": "object", "properties": {"code": {"type": "string", "pattern": "("}}}
    tool = {"type": "function", "function": {"name": "open_door", "parameters": bad}}
    for choice in ("required", {"type": "function", "function": {"name": "open_door"}}):
        with pytest.raises(openai.BadRequestError) as refused:
            sdk.chat.completions.create(
                model=server.model,
                messages=QUESTION,
                tools=[*TOOLS, tool],
                tool_choice=choice,  # type: ignore[arg-type]
            )
        assert refused.value.param == "tools[2].function.parameters"
        assert "open_door" in refused.value.message


DOSES = 'start: dose ("\\n" dose)~1..2\ndose: "\\"" /[a-z]{1,6}/ "\\" " /[1-9]/ " mg"'
DOSE = r'"[a-z]{1,6}" [1-9] mg'


def test_a_custom_tool_s_input_is_held_to_its_grammar(sdk: openai.OpenAI, server: Server) -> None:
    """Whether one tool is named, or one of several is to be called: the texts are parsed by a
    regular expression that says the same."""

    def asked(definition: str, choice: Any) -> Any:
        grammar = {"syntax": "lark", "definition": definition}
        custom = {"name": "dose", "format": {"type": "grammar", "grammar": grammar}}
        tools: Any = [{"type": "custom", "custom": custom}, *TOOLS]
        reply = sdk.chat.completions.create(
            model=server.model, messages=QUESTION, tools=tools, tool_choice=choice, max_tokens=150
        )
        return reply.choices[0].message.tool_calls

    named = {"type": "custom", "custom": {"name": "dose"}}
    for choice in (named, named, "required"):
        for call in asked(DOSES, choice) or ():
            if call.type == "custom":
                assert re.fullmatch(rf"{DOSE}(\n{DOSE}){{1,2}}", call.custom.input)
            else:
                check_call(call.function.name, call.function.arguments)
    for choice in (named, "required"):
        with pytest.raises(openai.BadRequestError) as refused:
            asked("start: missing", choice)
        assert refused.value.param == "tools[0].custom.format"
        assert "missing" in refused.value.message


@pytest.mark.parametrize("seed", [1, 2])
def test_required_calls_are_valid_and_stream_as_they_are(
    sdk: openai.OpenAI, server: Server, seed: int
) -> None:
    fields: dict[str, Any] = {
        "model": server.model,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 1,
        "seed": seed,
        "max_tokens": 160,
    }
    choice = sdk.chat.completions.create(**fields).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    check_call(call.function.name, call.function.arguments)

    ids, names, pieces, reasons = [], [], [], []
    for chunk in sdk.chat.completions.create(**fields, stream=True):
        for part in chunk.choices:
            reasons.append(part.finish_reason)
            assert not part.delta.content
            for delta in part.delta.tool_calls or ():
                assert delta.index == 0
                ids += [delta.id] if delta.id else []
                names += [delta.function.name] if delta.function.name else []
                pieces.append(delta.function.arguments or "")
    assert len(ids) == len(names) == 1
    assert len(pieces) > 2, "the arguments came in one piece"
    assert (names[0], "".join(pieces)) == (call.function.name, call.function.arguments)
    assert reasons[-1] == "tool_calls"

    # What was called can be sent back, with its answer.
    again = sdk.chat.completions.create(
        model=server.model,
        messages=[
            *QUESTION,
            choice.message,
            {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21"},
        ],
        tools=TOOLS,
        max_tokens=4,
    )
    assert again.usage.prompt_tokens > 0


def test_a_named_function_gets_its_arguments(sdk: openai.OpenAI, server: Server) -> None:
    choice = sdk.chat.completions.create(
        model=server.model,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "add"}},
        temperature=1,
        seed=5,
        max_tokens=80,
    ).choices[0]
    (call,) = choice.message.tool_calls or ()
    assert call.function.name == "add"
    check_call("add", call.function.arguments)


def test_required_calls_of_a_response(sdk: openai.OpenAI, server: Server) -> None:
    fields: dict[str, Any] = {
        "model": server.model,
        "input": QUESTION,
        "tools": [{"type": "function", **tool["function"]} for tool in TOOLS],
        "parallel_tool_calls": False,
        "temperature": 1,
        "extra_body": {"seed": 1},
        "max_output_tokens": 160,
    }
    reply = sdk.responses.create(**fields, tool_choice="required")
    assert reply.status == "completed"
    (call,) = reply.output
    assert call.type == "function_call"
    check_call(call.name, call.arguments)

    pieces = []
    with sdk.responses.stream(**fields, tool_choice="required") as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                pieces.append(event.delta)
        (streamed,) = stream.get_final_response().output
    assert len(pieces) > 2, "the arguments came in one piece"
    assert "".join(pieces) == streamed.arguments == call.arguments
    assert streamed.name == call.name
    raw = list(sdk.responses.create(**fields, tool_choice="required", stream=True))
    assert [event.sequence_number for event in raw] == list(range(len(raw)))
    assert raw[-1].type == "response.completed"
    assert raw[-1].response.output[0].arguments == call.arguments

    # Chat's answer to the same question, with the same seed, is the same call.
    chat = sdk.chat.completions.create(
        model=server.model,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=1,
        seed=1,
        max_tokens=160,
    )
    (same,) = chat.choices[0].message.tool_calls or ()
    assert (same.function.name, same.function.arguments) == (call.name, call.arguments)

    told = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 21"}
    fields |= {"input": [*QUESTION, call, told], "max_output_tokens": 4}
    again = sdk.responses.create(**fields)
    assert again.usage is not None
    assert again.usage.input_tokens > reply.usage.input_tokens
    named = {"type": "function", "name": "add"}
    (add,) = sdk.responses.create(
        **fields | {"input": QUESTION, "max_output_tokens": 80}, tool_choice=named
    ).output
    assert add.name == "add"
    check_call("add", add.arguments)


def test_tokenize_is_what_the_model_reads(server: Server) -> None:
    status, asked = server.post("/tokenize", {"messages": QUESTION, "return_token_strs": True})
    assert status == 200
    body = {"messages": QUESTION, "max_tokens": 1}
    _, answer = server.post("/v1/chat/completions", body)
    assert asked["count"] == len(asked["tokens"]) == len(asked["token_strs"])
    assert asked["count"] == answer["usage"]["prompt_tokens"]
    _, back = server.post("/detokenize", {"tokens": asked["tokens"]})
    assert back["prompt"].startswith("<|im_start|>system\n")
    assert server.post("/tokenize", {"prompt": back["prompt"]})[1]["tokens"] == asked["tokens"]


def test_a_template_of_ones_own_that_stalls_holds_up_nobody(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    stall = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    path = tmp_path / "own.jinja"
    path.write_text(
        "{{ messages[0].content }}{% if messages[0].content == 'stall' %}" + stall + "{% endif %}"
        "{% if messages[0].content == 'no' %}{{ raise_exception('Not that.') }}{% endif %}"
    )
    server = start_server("--chat-template", str(path))

    def ask(text: str) -> tuple[int, Any]:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        found = server.post("/v1/chat/completions", body)
        # On a busy machine, a renderer may not get its 2 s of a processor in the time that it has.
        while found[0] == 503:
            found = server.post("/v1/chat/completions", body)
        return found

    status, answer = ask("Hello there")
    assert status == 200
    tokens = server.post("/tokenize", {"prompt": "Hello there"})[1]["count"]
    assert answer["usage"]["prompt_tokens"] == tokens
    status, answer = ask("stall")
    assert (status, "takes longer than 2 s" in answer["error"]["message"]) == (400, True)
    status, answer = ask("no")
    assert (status, "Not that." in answer["error"]["message"]) == (400, True)
    assert ask("Hello there")[0] == 200
    renderer = psutil.Process(server.child("template"))
    renderer.kill()
    assert ask("Hello there")[0] == 200


@pytest.mark.parametrize(
    ("template", "says"),
    [("{% if %}", "doesn't compile"), ("/nowhere/at.all", "can't be read")],
)
def test_a_template_that_will_not_do_is_one_clear_line(
    start_server: Callable[..., Server], template: str, says: str
) -> None:
    server = start_server("--chat-template", template, wait=False)
    with pytest.raises(ServerFailed) as failure:
        server.wait_ready()
    assert failure.value.code != 0
    assert says in failure.value.stderr
    assert "Traceback" not in failure.value.stderr


@pytest.mark.parametrize("flag", ["--tool-call-parser", "--reasoning-parser"])
def test_a_parser_that_does_not_exist_is_one_clear_line(
    start_server: Callable[..., Server], flag: str
) -> None:
    server = start_server(flag, "nonsense", wait=False)
    with pytest.raises(ServerFailed) as failure:
        server.wait_ready()
    assert "nonsense; allowed: auto" in failure.value.stderr
    assert "Traceback" not in failure.value.stderr
