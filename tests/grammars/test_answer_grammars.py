"""Grammars of whole answers, as the gateway writes them for each format: what they admit is what
its parser reads as thoughts, calls and an answer, over a tokenizer that has the format's marks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer

from penstock.parsing import reasoning_parser, tool_parser
from penstock.parsing.format import ChannelFormat
from penstock.parsing.interface import CallBegin, Content, Event, Reasoning, merged
from penstock.parsing.output import whole_parser
from penstock.request.structured_outputs import StructuredOutputs
from penstock_gateway.chat.answer_grammar import answer_grammar, free_answer
from penstock_gateway.chat.tools import Tool, ToolUse
from penstock_grammars.library import Library

pytestmark = pytest.mark.timeout(300)

EOS = 2
PERSON = StructuredOutputs(
    json={"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
)
ADULT = '{"age": 71}'
TOOLS = msgspec.convert(
    [
        {"function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}},
        {"function": {"name": "now"}},
    ],
    tuple[Tool, ...],
)
OFF, FREE = ToolUse((), "off"), ToolUse(TOOLS, "free")
REQUIRED, NAMED = ToolUse(TOOLS, "required"), ToolUse(TOOLS, "named", "add")
QWEN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>")
DEEPSEEK = tuple(
    f"<｜tool▁{name}｜>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
ANALYSIS = "<|channel|>analysis<|message|>Hm. {<|end|><|start|>assistant"
FINAL, CALL = "<|channel|>final<|message|>", "<|channel|>commentary to=functions."
DEEPSEEK_CALL = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
XML = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"


class Shape(msgspec.Struct):
    """calls, thoughts: names of formats.  marks: tokens that the tokenizer has for them.
    prompt: the end of the filled template."""

    calls: str
    thoughts: str
    marks: tuple[str, ...] = ()
    prompt: str = "assistant\n"


THINKS = Shape("hermes", "qwen3", QWEN)
INSIDE = Shape("hermes", "qwen3", QWEN, "assistant\n<think>\n")
OVER = Shape("hermes", "qwen3", QWEN, "assistant\n<think>\n\n</think>\n\n")
IN_TEXT = Shape("hermes", "qwen3")
R1 = Shape("deepseek_v31", "deepseek_r1", ("<think>", "</think>", *DEEPSEEK))
CHANNELS = Shape("openai", "openai", HARMONY, "<|end|><|start|>assistant")
PLAIN = Shape("json", "none")
XML_CALLS = Shape("qwen3_coder", "none", QWEN[2:])
LLAMA = Shape("llama3_json", "none", ("<|python_tag|>",))
MUSE = Shape(
    "muse_glimmer",
    "muse_glimmer",
    ("<|start|>", "<|message|>", "<|eom|>"),
    "<|eot|><|start|>assistant",
)
GLM4 = Shape("glm4", "none")
KIMI = Shape("kimi_k3", "kimi_k3", ("<|open|>", "<|close|>", "<|sep|>"), "<|open|>think<|sep|>")
SOLAR = Shape("solar_open", "solar_open", prompt="<|begin|>assistant")
APERTUS = Shape("apertus", "apertus")

SELF = " to=self<|message|>Hm. {<|eom|><|start|>assistant"
ATEM = (
    '<atem:function_calls>\n<atem:invoke name="add">\n<atem:parameter name="a">1</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>"
)
KIMI_CALL = (
    '<|open|>tools<|sep|><|open|>call tool="add" index="1"<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|>"
)
ADD = '{"name": "add", "arguments": {"a": 1}}'
FORCED = '[{"name": "add", "parameters": {"a": 1}}]'
ADMITTED: list[tuple[Shape, ToolUse, str, str]] = [
    (THINKS, OFF, f"<think>\nHm. {{\n</think>\n\n{ADULT}", "thoughts answer"),
    (THINKS, OFF, ADULT, "answer"),
    (INSIDE, OFF, f"Hm.\n</think>\n\n{ADULT}", "thoughts answer"),
    (INSIDE, OFF, f"<think>Hm.\n</think>\n\n{ADULT}", "thoughts answer"),
    (OVER, OFF, ADULT, "answer"),
    (IN_TEXT, OFF, f"<think>Hm </thin.</think>{ADULT}", "thoughts answer"),
    (R1, OFF, f"Hm.</think>\n{ADULT}", "thoughts answer"),
    (CHANNELS, OFF, f"{FINAL}{ADULT}", "answer"),
    (CHANNELS, OFF, f"{ANALYSIS}{FINAL}{ADULT}", "thoughts answer"),
    (THINKS, FREE, f"<think>Hm.</think>\n<tool_call>\n{ADD}\n</tool_call>", "thoughts call"),
    (THINKS, FREE, f"<tool_call>{ADD}</tool_call>\n<tool_call>{ADD}</tool_call>", "call call"),
    (THINKS, FREE, f"<think>Hm.</think>{ADULT}", "thoughts answer"),
    (OVER, FREE, f"<tool_call>{ADD}</tool_call>", "call"),
    (OVER, FREE, ADULT, "answer"),
    (IN_TEXT, FREE, f"<think>Hm.</think><tool_call>{ADD}</tool_call>", "thoughts call"),
    (R1, FREE, f"Hm.</think>{DEEPSEEK_CALL}", "thoughts call"),
    (XML_CALLS, FREE, XML, "call"),
    (XML_CALLS, FREE, ADULT, "answer"),
    (
        CHANNELS,
        FREE,
        f'{ANALYSIS}{CALL}add <|constrain|>json<|message|>{{"a": 1}}',
        "thoughts call",
    ),
    (CHANNELS, FREE, f'{CALL}add<|message|>{{"a": 1}}', "call"),
    (CHANNELS, FREE, f"{ANALYSIS}{FINAL}{ADULT}", "thoughts answer"),
    (PLAIN, FREE, ADD, "call"),
    (PLAIN, FREE, ADULT, "answer"),
    (LLAMA, FREE, f"<|python_tag|>{ADD}", "call"),
    (LLAMA, FREE, ADD.replace("arguments", "parameters"), "call"),
    (LLAMA, FREE, ADULT, "answer"),
    (MUSE, OFF, f"{SELF} to=user<|message|>{ADULT}", "thoughts answer"),
    (MUSE, FREE, f" to=user<|message|>{ADULT}", "answer"),
    (MUSE, FREE, f"{SELF} to=add<|message|>{ATEM}", "thoughts call"),
    (GLM4, FREE, 'add\n{"a": 1}', "call"),
    (GLM4, FREE, ADULT, "answer"),
    (KIMI, FREE, f"Hm.<|close|>think<|sep|>{KIMI_CALL}", "thoughts call"),
    (
        KIMI,
        FREE,
        f"Hm.<|close|>think<|sep|><|open|>response<|sep|>{ADULT}<|close|>response<|sep|>",
        "thoughts answer",
    ),
    (KIMI, FREE, f"Hm.<|close|>think<|sep|>{ADULT}", "thoughts answer"),
    (
        SOLAR,
        OFF,
        f"<|think|>Hm.<|end|><|begin|>assistant<|content|>{ADULT}<|end|>",
        "thoughts answer",
    ),
    (APERTUS, FREE, '<|tools_prefix|>[{"now": {}}]<|tools_suffix|>', "call"),
    (THINKS, REQUIRED, f"<think>Hm.</think>{FORCED}", "thoughts call"),
    (INSIDE, REQUIRED, f"Hm.</think>\n\n{FORCED}", "thoughts call"),
    (OVER, REQUIRED, FORCED, "call"),
    (PLAIN, REQUIRED, FORCED, "call"),
    (CHANNELS, REQUIRED, f"{ANALYSIS}{CALL}now<|message|>{{}}", "thoughts call"),
    (INSIDE, NAMED, 'Hm.</think>{"a": 1}', "thoughts call"),
    (CHANNELS, NAMED, f'{ANALYSIS}{CALL}add<|message|>{{"a": 1}}', "thoughts call"),
]
"""What is said, and of what kinds its parts are."""
REFUSED: list[tuple[Shape, ToolUse, str]] = [
    (THINKS, OFF, "<think>Hm.</think>seventy"),
    (THINKS, OFF, "<think>Hm."),
    (THINKS, OFF, "Hm."),
    (INSIDE, OFF, ADULT),
    (IN_TEXT, OFF, "<think>Hm.</think>no"),
    (OVER, OFF, f"<tool_call>{ADD}</tool_call>"),
    (CHANNELS, OFF, ADULT),
    (CHANNELS, OFF, f'{CALL}add<|message|>{{"a": 1}}'),
    (CHANNELS, FREE, f'{CALL}other<|message|>{{"a": 1}}'),
    (CHANNELS, REQUIRED, f"{ANALYSIS}{FINAL}{ADULT}"),
    (CHANNELS, NAMED, f"{CALL}now<|message|>{{}}"),
    (THINKS, REQUIRED, f"<think>Hm.</think>{ADULT}"),
    (THINKS, NAMED, '<think>Hm.</think>"a"'),
    (MUSE, OFF, f" to=add<|message|>{ATEM}"),
    (MUSE, FREE, f" to=other<|message|>{ATEM}"),
    (MUSE, FREE, f"<|message|>{ADULT}"),
    (GLM4, FREE, 'other\n{"a": 1}'),
    (PLAIN, FREE, ADD.replace("add", "other")),
    (PLAIN, FREE, "seventy-one"),
]


@pytest.fixture(scope="module")
def admits(
    default_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Shape, ToolUse, str], bool]:
    """Whether the grammar of an answer of that shape admits a text as the whole of it."""

    @cache
    def library(marks: tuple[str, ...]) -> tuple[Library, Tokenizer]:
        tokenizer = Tokenizer.from_file(str(default_folder / "tokenizer.json"))
        tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
        path = tmp_path_factory.mktemp("marks") / "tokenizer.json"
        tokenizer.save(str(path))
        return Library(path, tokenizer.get_vocab_size(), (EOS,)), tokenizer

    def admits(shape: Shape, use: ToolUse, text: str) -> bool:
        compiler, tokenizer = library(shape.marks)
        grammar = grammar_of(shape, use)
        source = compiler.source(grammar.definition())
        compiler.probe(source)
        matcher = compiler.matcher(source)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        for mark in shape.marks:
            assert (mark in text) == (tokenizer.token_to_id(mark) in ids)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return admits


def grammar_of(shape: Shape, use: ToolUse) -> StructuredOutputs:
    thoughts = reasoning_parser(shape.thoughts, "")
    made = answer_grammar(
        PERSON,
        use,
        tool_parser(shape.calls, "").form,
        None if thoughts is None else thoughts.form,
        shape.prompt,
    )
    assert made is not None
    return made


@pytest.mark.parametrize(("shape", "use", "text", "parts"), ADMITTED)
def test_what_the_model_may_say(
    admits: Callable[..., bool], shape: Shape, use: ToolUse, text: str, parts: str
) -> None:
    assert admits(shape, use, text)


@pytest.mark.parametrize(("shape", "use", "text"), REFUSED)
def test_what_it_may_not_say(
    admits: Callable[..., bool], shape: Shape, use: ToolUse, text: str
) -> None:
    assert not admits(shape, use, text)


READ = [each for each in ADMITTED if each[1] in (OFF, FREE) or each[0] is CHANNELS]


@pytest.mark.parametrize(("shape", "use", "text", "parts"), READ)
def test_it_is_read_as_what_it_is(shape: Shape, use: ToolUse, text: str, parts: str) -> None:
    tools = None if use.mode == "off" else tool_parser(shape.calls, "")
    thoughts = reasoning_parser(shape.thoughts, "")
    if tools is None and thoughts is None:
        pytest.fail("nothing is read")
    parser = whole_parser(tools, thoughts, use.schemas, shape.prompt, {})
    events = merged([*parser.push(text), *parser.finish()])
    assert " ".join(filter(None, map(kind, events))) == parts
    assert [each.text for each in events if isinstance(each, Content)] == (
        [ADULT] if "answer" in parts else []
    )


def kind(event: Event) -> str:
    match event:
        case Reasoning():
            return "thoughts"
        case CallBegin():
            return "call"
        case Content():
            return "answer"
    return ""


def test_a_tag_of_the_clients_is_left_alone() -> None:
    tag: dict[str, Any] = {"format": {"type": "any_text"}}
    given = StructuredOutputs(structural_tag=tag)
    form = tool_parser("hermes", "").form
    assert answer_grammar(given, FREE, form, None, "") is given


def test_without_thoughts_and_tools_it_stays_a_schema() -> None:
    assert answer_grammar(PERSON, OFF, tool_parser("json", "").form, None, "") is PERSON
    forced = answer_grammar(PERSON, REQUIRED, tool_parser("json", "").form, None, "")
    assert forced is not None
    assert json.loads(forced.definition().text)["items"]


CHANNEL_TEXTS = [
    (True, f"{ANALYSIS}{FINAL}Well: to=functions.other"),
    (True, f"{ANALYSIS}<|channel|>commentary<|message|>First.<|end|><|start|>assistant{CALL}now"),
    (True, f'{ANALYSIS}{CALL}add<|message|>{{"a": 1}}'),
    (False, f'{ANALYSIS}{CALL}add<|message|>{{"b": 1}}'),
    (False, f"{CALL}other<|message|>"),
    (True, f'{CALL}now <|constrain|>json<|message|>{{"b": 1}}'),
]
"""Whether text in channels is admitted where `add` is strict, and `now` isn't; as the beginning of
an answer."""


@pytest.mark.parametrize(("fits", "text"), CHANNEL_TEXTS)
def test_calls_in_channels_are_held(
    default_folder: Path, tmp_path: Path, fits: bool, text: str
) -> None:
    tokenizer = Tokenizer.from_file(str(default_folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in HARMONY])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    library = Library(tmp_path / "tokenizer.json", tokenizer.get_vocab_size(), (EOS,))
    form = tool_parser("openai", "").form
    assert isinstance(form, ChannelFormat)
    schemas = {"add": FREE.callable_schemas["add"], "now": None}
    grammar = free_answer(form, form, "", CHANNELS.prompt, schemas)
    assert grammar is not None
    matcher = library.matcher(library.source(grammar.definition()))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert (matcher.try_consume_tokens(ids) == len(ids)) is fits
