"""Tool calls and reasoning out of text: the same wherever it is cut, and nothing lost."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.parsing import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    OutputParser,
    Reasoning,
    reasoning_parser,
    tool_parser,
)
from penstock.parsing.interface import PIECE, WalkingParser, merged
from penstock.parsing.json_scanner import JsonScanner, ScanState
from penstock.parsing.output import ChainedParser, NamedCall, RequiredCalls
from penstock.parsing.registry import chosen
from tests.met import met
from tests.thinning import part

TOOLS = ("get_weather", "add")
WEATHER = '{"city": "Paris", "days": [1, 2.5e3, null], "deep": {"a": "\\"}{\\u00e9"}}'
MAKERS: dict[str, Callable[[], OutputParser]] = {
    **{
        name: lambda name=name: tool_parser(name, "")(TOOLS)  # type: ignore[misc]
        for name in ("hermes", "llama3_json", "mistral", "json")
    },
    "required": lambda: RequiredCalls(TOOLS),
    "named": lambda: NamedCall("add"),
    "qwen3": lambda: _reasoning("qwen3", ""),
    "opened by the prompt": lambda: _reasoning("qwen3", "<|im_start|>assistant\n<think>\n"),
    "deepseek_r1": lambda: _reasoning("deepseek_r1", ""),
    "closed by the prompt": lambda: _reasoning("deepseek_r1", "<think>\n\n</think>\n\n"),
    "both": lambda: ChainedParser(_reasoning("qwen3", ""), tool_parser("hermes", "")(TOOLS)),
}


def _reasoning(name: str, prompt: str) -> OutputParser:
    kind = reasoning_parser(name, "")
    assert kind is not None
    return kind(prompt)


def parse(name: str, *pieces: str) -> list[Event]:
    parser = MAKERS[name]()
    events: list[Event] = []
    for piece in pieces:
        events += parser.push(piece)
    return merged([*events, *parser.finish()])


def content(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def calls(events: list[Event]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallBegin):
            found.append((event.name, ""))
        elif isinstance(event, CallArguments):
            found[-1] = (found[-1][0], found[-1][1] + event.text)
    return found


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<tool_", "call>", "[TOOL_CALLS]", "[TOOL", "[ARGS]"),
    *("<|python_tag|>", "<|python", "<think>", "</think>", "<thi", "```json\n", "```", "\n", " "),
    *('{"name": "get_weather", "arguments": ', '{"name": "add", "parameters": ', WEATHER, "{}"),
    *('{"arguments": {"a": 1}, "name": "add"}', '{"name": "other", "arguments": {}}', "add", "}"),
    *("{", "[", "]", ",", ";", ":", '"', "\\", "1", "-0.5e", "true", "nul", "Let me see.", "é👋"),
    *('"name"', '"arguments"', '{"name": 3}', '{"name":"add","arguments":"{\\"a\\":1}"}'),
    *('{"name":"add","arguments":null,"id":12}', "\t" * 1100, "x" * 70, "[CALL_ID]a1"),
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
    st.text(max_size=60),
)
ONE = '{"name": "add", "arguments": {"a": 1, "of": ["é", null]}}'
THOUGHT = "<think>\nWhat?\n</think>\nThis."
WHOLE: dict[str, list[str]] = {
    "hermes": [f"<tool_call>\n{ONE}\n</tool_call>"],
    "llama3_json": [f"<|python_tag|>{ONE}", ONE],
    "mistral": [f"[TOOL_CALLS][{ONE}]", '[TOOL_CALLS]add[ARGS]{"a": 1}'],
    "json": [f"[{ONE}]", ONE],
    "required": [f"[{ONE}]", f"[{ONE}, {ONE}]"],
    "named": ['{"a": 1}'],
    "qwen3": [THOUGHT],
    "deepseek_r1": [THOUGHT],
    "both": [f"{THOUGHT}\n<tool_call>\n{ONE}\n</tool_call>", THOUGHT],
}


def texts_of(name: str) -> st.SearchStrategy[str]:
    """Half of them begin with what is no plain text in the format."""
    begins = st.sampled_from(WHOLE.get(name, [""]))
    more = st.lists(st.sampled_from(FRAGMENTS), max_size=5).map("".join)
    return st.tuples(begins, more).map("".join) | TEXTS


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", MAKERS)
def test_cuts_do_not_matter(name: str, data: st.DataObject) -> None:
    text = data.draw(texts_of(name))
    whole = parse(name, text)
    if name != "closed by the prompt":  # All is plain text there.
        met("what is no plain text", any(not isinstance(event, Content) for event in whole))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(name, *pieces) == whole
    assert parse(name, *text) == whole


@pytest.mark.parametrize("mark", ["<tool_call>", "[\n", "Let me see.\n[x]\n"])
def test_a_long_answer_is_read_in_pieces(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step cuts its text off the rest, so what is left of a long answer may not be all of it."""
    walk, most = WalkingParser._walk, 0

    def watched(self: WalkingParser, *, ended: bool) -> list[Event]:
        nonlocal most
        most = max(most, len(self._rest))
        return walk(self, ended=ended)

    monkeypatch.setattr(WalkingParser, "_walk", watched)
    text = mark * (20 * PIECE // len(mark))
    whole = parse("hermes", text)
    assert most < 2 * PIECE
    assert content(whole) == text
    assert parse("hermes", *text) == whole


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(text=TEXTS)
@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_lost(name: str, text: str) -> None:
    """All letters come back, in content, reasoning, names or arguments, but for the format's own
    marks; and no letter comes that the model didn't write."""
    met("some text", text.strip())
    events = parse(name, text)
    said = "".join(event.name if isinstance(event, CallBegin) else event.text for event in events)
    if name == "required" and not said.strip():
        # The beginning of an array of calls, of which none has begun.
        assert text.lstrip()[:1] in ("", "[")
    elif not calls(events):
        marks = ("<think>", "</think>")
        for mark in marks:
            text, said = text.replace(mark, ""), said.replace(mark, "")
        assert "".join(said.split()) == "".join(text.split())
    letters = [letter for letter in said.replace("\\", "") if letter.isalpha()]
    assert len(letters) <= len(text) + len("add")


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=12,
    ),
    before=st.sampled_from(["", "Let me look.\n"]),
    ascii_only=st.booleans(),
)
def test_any_arguments_come_through(value: object, before: str, ascii_only: bool) -> None:
    """Arguments are as Python's json writes them; two calls, of all formats."""
    arguments = json.dumps({"value": value}, ensure_ascii=ascii_only)
    met("nested", isinstance(value, list | dict) and value)
    met("escapes", "\\" in arguments)
    one = f'{{"name": "add", "arguments": {arguments}}}'
    expected = [("add", arguments), ("add", arguments)]
    hermes = parse("hermes", f"{before}<tool_call>\n{one}\n</tool_call>\n" * 2)
    assert calls(hermes) == expected
    assert calls(parse("mistral", f"{before}[TOOL_CALLS][{one}, {one}]")) == expected
    new = f"[TOOL_CALLS]add[ARGS]{arguments}"
    assert calls(parse("mistral", before + new + new)) == expected
    assert calls(parse("json", f"[{one},\n {one}]")) == expected
    assert calls(parse("json", f"```json\n[{one},\n {one}]\n```")) == expected
    assert calls(parse("llama3_json", f"<|python_tag|>{one}; {one}")) == expected
    assert calls(parse("required", f"[{one}, {one}]")) == expected
    assert parse("named", arguments) == [CallBegin("add"), CallArguments(arguments)]


BLOCK = "<tool_call>{}</tool_call>"
CALL = f'{{"name": "get_weather", "arguments": {WEATHER}}}'


@pytest.mark.parametrize(
    ("name", "text", "said", "called"),
    [
        ("hermes", f"<tool_call>{CALL}</tool_call>", "", [("get_weather", WEATHER)]),
        ("hermes", f"\n\n<tool_call>{CALL}</tool_call>\n", "", [("get_weather", WEATHER)]),
        ("hermes", f"So: <tool_call>{CALL}</tool_call> ok", "So: ok", [("get_weather", WEATHER)]),
        ("hermes", f"<tool_call>{CALL}", "", [("get_weather", WEATHER)]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        (
            "hermes",
            '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "f"}</tool_call>',
            "",
            [("f", '{"a": 1}')],
        ),
        ("hermes", "<tool_call>no</tool_call>", "<tool_call>no</tool_call>", []),
        ("hermes", '<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', []),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
        ("llama3_json", f"{CALL}", "", [("get_weather", WEATHER)]),
        ("llama3_json", f"Well {CALL}", f"Well {CALL}", []),
        ("llama3_json", '{"name": "x", "parameters": {}}', '{"name": "x", "parameters": {}}', []),
        ("json", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
        ("json", "[1, 2]", "[1, 2]", []),
        ("json", "```json\n{}\n```", "```json\n{}\n```", []),
        ("json", f"So:\n{CALL}\nok", "So:\n\nok", [("get_weather", WEATHER)]),
        ("json", f"So:\n```json\n[{CALL}]\n```", "So:\n", [("get_weather", WEATHER)]),
        ("json", f"So:\n[{CALL},\n{CALL}]", "So:\n", [("get_weather", WEATHER)] * 2),
        ("json", f"So: {CALL}", f"So: {CALL}", []),
        ("mistral", "[TOOL_CALLS] what?", "[TOOL_CALLS] what?", []),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"a":1}', "", [("f", '{"a":1}')]),
        ("required", "[]", "[]", []),
    ],
)
def test_what_is_a_call(name: str, text: str, said: str, called: list[tuple[str, str]]) -> None:
    events = parse(name, text)
    assert content(events) == said
    assert calls(events) == called


@pytest.mark.parametrize(
    ("name", "text", "thought", "said"),
    [
        ("qwen3", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("qwen3", "Yes <think>no</think>", "", "Yes <think>no</think>"),
        ("qwen3", "<think>Hm. For ever", "Hm. For ever", ""),
        ("opened by the prompt", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("opened by the prompt", "<think>\nHm.</think>Yes.", "Hm.", "Yes."),
        ("deepseek_r1", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("deepseek_r1", "<think>\n</think>\n\nYes.", "", "Yes."),
        ("closed by the prompt", "Yes.", "", "Yes."),
        ("both", f"<think>a</think>\n<tool_call>{CALL}</tool_call>", "a", ""),
        ("both", f"<think>{BLOCK}</think>x", BLOCK, "x"),
    ],
)
def test_what_is_thinking(name: str, text: str, thought: str, said: str) -> None:
    events = parse(name, text)
    assert "".join(e.text for e in events if isinstance(e, Reasoning)) == thought
    assert content(events) == said


def test_a_forced_array_that_is_cut_short_is_never_content() -> None:
    """Wherever it is cut: a client would show it to people."""
    one = f'{{"name": "get_weather", "parameters": {WEATHER}}}'
    text = f" [{one} , {one}]"
    begun = [at + len('"parameters": ') for at in range(len(text)) if text[at:].startswith('"par')]
    for end in range(len(text) + 1):
        events = parse("required", text[:end])
        assert content(events) == ""
        assert len(calls(events)) == sum(end > at for at in begun)
    assert calls(parse("required", text)) == [("get_weather", WEATHER)] * 2


def test_arguments_are_handed_on_as_they_come() -> None:
    parser = tool_parser("hermes", "")(TOOLS)
    assert parser.push('<tool_call>{"name": "add", "arguments": ') == []
    assert parser.push('{"a": 1') == [CallBegin("add"), CallArguments('{"a": 1')]
    assert parser.push(', "b": "x') == [CallArguments(', "b": "x')]
    assert parser.push('"}') == [CallArguments('"}')]
    assert parser.push("}</tool_call>") == []


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "json", "required", "qwen3"])
@pytest.mark.parametrize(
    "endless",
    [
        " ",
        "<tool_call>{",
        '<tool_call>{"a": "',
        '{"x": "',
        "[TOOL_CALLS]a",
        '{"arguments": {"a": "',
        "[" * 999,
        "```",
        '{"name": "add", "x": 1',
    ],
)
def test_what_is_held_back_is_bounded(name: str, endless: str) -> None:
    parser = MAKERS[name]()
    got = sum(len(getattr(event, "text", "")) for event in parser.push(endless))
    pushed = len(endless)
    for _ in range(300):
        got += sum(len(getattr(event, "text", "")) for event in parser.push("1" * 500))
        pushed += 500
    assert pushed - got < 70_000


@pytest.mark.parametrize(
    ("name", "begun", "letter"),
    [
        ("gemma4", "<|tool_call>call:add{a:", "1"),
        ("qwen3_coder", "<tool_call>\n<function=add>\n<parameter=a>\n", "1"),
        ("hermes", "<tool_call>", " "),
        ("pythonic", "[add(a='", "x"),
    ],
)
def test_a_long_value_costs_as_much_by_the_token_as_a_short_one(
    name: str, begun: str, letter: str
) -> None:
    def seconds(length: int) -> float:
        parser = tool_parser(name, "")(TOOLS)
        parser.push(begun)
        start = time.thread_time()
        for _ in range(length):
            parser.push(letter)
        return time.thread_time() - start

    short = min(seconds(2_000) for _ in range(3))
    # Each try may meet a processor that somebody else slows down; what grows with the square takes
    # 20 times as long in all of them.
    assert any(seconds(40_000) < 3 * 20 * short for _ in range(5))


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(
    text=st.text(st.sampled_from('{}[]",:\\ntrue1-.eE0u "a'), max_size=24)
    | st.dictionaries(st.text(max_size=3), st.lists(st.floats() | st.none())).map(json.dumps)
)
@example('{"a": -0.0e+1}')
@example('{"a": 01}')
@example('{"\\ud800": [{}]}')
def test_the_scanner_agrees_with_python(text: str) -> None:
    scanner = JsonScanner()
    read = 0
    for letter in text:
        if scanner.state in (ScanState.DONE, ScanState.BROKEN):
            break
        scanner.step(letter)
        read += 1
    try:
        value = json.loads(text, parse_constant=lambda name: 1 / 0)
        valid = isinstance(value, (dict, list))
    except (ValueError, ZeroDivisionError):
        valid = False
    met("JSON that is whole", valid)
    if valid:
        assert scanner.state is ScanState.DONE
    elif scanner.state is ScanState.DONE:
        json.loads(text[:read])


def test_the_scanner_follows_every_beginning() -> None:
    chance = random.Random(7)
    for _ in range(300):
        value = {"a": [chance.random(), {"b": chance.choice([None, True, 'x\n"é'])}], "c": {}}
        text = json.dumps(value, indent=chance.choice([None, 2]))
        scanner = JsonScanner()
        for letter in text[: chance.randrange(len(text))]:
            scanner.step(letter)
            assert scanner.state not in (ScanState.BROKEN, ScanState.DONE)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>{\"name\": ' }}", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("Environment: ipython", "llama3_json"),
        ("{{ messages }}", "json"),
    ],
)
def test_auto_reads_the_template(template: str, name: str) -> None:
    assert tool_parser("auto", template).name == name
    assert reasoning_parser("auto", template) is None
    assert reasoning_parser("auto", "…</think>…") is not None


KIMI_VL = (
    "<|im_user|>user<|im_middle|><|media_start|>image<|media_content|><|media_pad|><|media_end|>"
)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (KIMI_VL, "kimi"),
        ("{{ content.split('◁/think▷')[-1] }}", "kimi"),
        (KIMI_VL + "</think>", "qwen3"),  # Kimi K2.5's
        (KIMI_VL + "<|tool_calls_section_begin|>", None),  # Kimi K2's
    ],
)
def test_thoughts_of_kimis_templates(template: str, name: str | None) -> None:
    found = reasoning_parser("auto", template)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{{"name": "add", "arguments": {}}}</tool_call>'),
        ("hermes", '<tool_call>{{"arguments": {}, "name": "add"}}</tool_call>'),
        ("mistral", "[TOOL_CALLS]add[ARGS]{}"),
        ("json", '[{{"name": "add", "arguments": {}}}]'),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>add:0"
            "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        ),
    ],
)
def test_line_breaks_in_strings_are_escaped(name: str, text: str) -> None:
    """Models write them so; the arguments are JSON all the same, wherever the text is cut."""
    raw = text.format('{"a\n": "b\n\tc\\\\n\x00", \n"d": 1}')
    for pieces in ([raw], [*raw]):
        parser = tool_parser(name, "")(TOOLS)
        events = [event for piece in pieces for event in parser.push(piece)]
        events = merged([*events, *parser.finish()])
        assert content(events) == ""
        [(called, arguments)] = calls(events)
        assert called == "add"
        assert json.loads(arguments) == {"a\n": "b\n\tc\\n\x00", "d": 1}
    cut = tool_parser(name, "")(TOOLS).push(raw[: raw.index("b")])
    assert "\n" not in "".join(arguments for _, arguments in calls(cut))


def test_a_family_s_format_is_never_another_s() -> None:
    """What a template says decides, then the family; a format that is unknown is called so."""
    assert tool_parser("auto", "{{ tools }}<weird>", "gpt_oss").name == "openai"
    assert tool_parser("auto", "<tool_call>name", "gpt_oss").name == "hermes"
    unknown = tool_parser("auto", "{{ tools }}<weird>", "llama")
    assert (unknown.name, unknown.known) == ("json", False)
    assert not tool_parser("auto", "{{ tools }}<tool_call><invoke name=").known
    assert tool_parser("json", "{{ tools }}<weird>").known
    assert chosen("auto", "auto", "{{ tools }}", "") == {
        "tool_call_parser": "json (format unknown)",
        "reasoning_parser": "none",
    }
