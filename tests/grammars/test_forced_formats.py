"""Calls that are forced come in the model's own format: what its grammar admits is what its parser
reads, and what the tools' schemas don't allow is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import AddedToken, Tokenizer

from penstock.parsing import tool_parser
from penstock.parsing.forced_grammar import forced_tag
from penstock.parsing.format import CallFormat
from penstock.parsing.formats import FORMATS
from penstock.parsing.interface import CallArguments, CallBegin
from penstock.parsing.output import OnlyCalls
from penstock.request.structured_outputs import StructuredOutputs
from penstock_grammars.library import Library
from tests.grammars.forced_cases import CASES, TOOLS, WEATHER, WRITTEN

pytestmark = pytest.mark.timeout(300)

EOS = 2


Admits = Callable[[str, str, int | None, str], bool]


@pytest.fixture(scope="module")
def library(
    default_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Library, Tokenizer]:
    """Over a tokenizer that has all formats' marks."""
    marks = {mark for name in WRITTEN for mark in form_of(name).tokens}
    tokenizer = Tokenizer.from_file(str(default_folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in sorted(marks)])
    path = tmp_path_factory.mktemp("marks") / "tokenizer.json"
    tokenizer.save(str(path))
    return Library(path, tokenizer.get_vocab_size(), (EOS,)), tokenizer


@pytest.fixture(scope="module")
def admits(library: tuple[Library, Tokenizer]) -> Admits:
    """Whether the grammar of forced calls in a format admits a text as the whole of an answer."""
    made_for, tokenizer = library

    @cache
    def source(name: str, template: str, most: int | None) -> str:
        tag = forced_tag(form_of(name), template, TOOLS, most)
        assert tag is not None
        made = made_for.source(StructuredOutputs(structural_tag={"format": tag}).definition())
        made_for.probe(made)
        return made

    def admits(name: str, template: str, most: int | None, text: str) -> bool:
        matcher = made_for.matcher(source(name, template, most))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        whole = matcher.try_consume_tokens(ids) == len(ids)
        return whole and bool(matcher.is_accepting())

    return admits


def form_of(name: str) -> CallFormat:
    form = tool_parser(name, "").form
    assert isinstance(form, CallFormat)
    return form


@pytest.mark.parametrize(("name", "template", "one", "between", "other"), CASES)
def test_calls_in_the_model_s_own_format(
    admits: Admits, name: str, template: str, one: str, between: str, other: str
) -> None:
    both = f"{one}{between}{other}"
    assert admits(name, template, None, both)
    assert admits(name, template, None, f"{both}\n"), "where a line break may be the end, too"
    assert not admits(name, template, 1, both)
    assert not admits(name, template, None, one.replace("3", '"3"') + between + other)
    assert not admits(name, template, None, both.replace("city", "town"))
    assert not admits(name, template, None, both.replace("now", "then"))
    assert not admits(name, template, None, f"Well. {both}")
    assert not admits(name, template, None, both[:-1])
    parser = OnlyCalls(tool_parser(name, "")(TOOLS))
    events = [*parser.push(f"{both}\n"), *parser.finish()]
    assert [event.name for event in events if isinstance(event, CallBegin)] == [*TOOLS]
    said = "".join(event.text for event in events if isinstance(event, CallArguments))
    assert said == f"{json.dumps(WEATHER, ensure_ascii=False)}{{}}"
    assert len(events) == 4


def test_values_of_every_kind(admits: Admits) -> None:
    """Keys have values: a string is as it is, whatever may be none is JSON."""
    begin, end = "<tool_call>\n<function=get_weather>\n", "</function>\n</tool_call>"

    def says(**values: str) -> bool:
        pairs = [f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items()]
        return admits("qwen3_coder", "", 1, f"{begin}{''.join(pairs)}{end}")

    assert says(city="<b>\n\n&lt;", unit="F", when='{"day": 7}')
    assert says(city="", when="null")
    assert not says(city="x", unit="K")
    assert not says(city="x", when="7")
    assert not says(days="7")  # no city
    assert not says(days="7", city="x")  # in another order


def test_types_that_are_written_with_values(admits: Admits) -> None:
    def says(before: str, **values: tuple[str, str]) -> bool:
        pairs = [
            f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
            for key, (kind, value) in values.items()
        ]
        call = f'<|open|>call tool="get_weather" index="1"<|sep|>{"".join(pairs)}'
        end = "<|close|>call<|sep|><|close|>tools<|sep|>"
        return admits("kimi_k3", "", 1, f"{before}<|open|>tools<|sep|>{call}{end}")

    silent = "<|close|>response<|sep|>"
    city = ("string", "3")
    assert says(silent, city=city, unit=("string", "F"), when=("object", '{"day": 7}'))
    assert says(f"<|open|>response<|sep|>{silent}", city=city, when=("null", "null"))
    assert not says("<|open|>response<|sep|>", city=city)
    assert not says(silent, city=("number", "3"))
    assert not says(silent, city=city, when=("null", '{"day": 7}'))
    assert not says(silent, city=city, when=("number", "7"))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}}},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {"const": "</parameter>"}}},
        {"anyOf": [{"type": "object"}]},
        {"type": "object", "properties": {}, "required": ["a"]},
    ],
)
def test_what_a_format_cannot_be_held_to_is_json(schema: Any) -> None:
    assert forced_tag(form_of("qwen3_coder"), "", {"f": schema}, None) is None
    assert forced_tag(form_of("hermes"), "", {"f": schema}, None) is not None


def test_every_format_s_own_calls_are_tried() -> None:
    written = {form.name for form in FORMATS if isinstance(form, CallFormat) and form.written}
    assert written == set(WRITTEN)


NESTED: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "a": {"type": "integer", "maximum": 9},
        "tags": {"type": "array", "items": {"type": "string"}},
        "deep": {
            "type": "object",
            "properties": {"x": {"type": ["number", "null"]}, "on": {"type": "boolean"}},
        },
        "kind": {"enum": ["p", "q"]},
        "tree": {"$ref": "#/$defs/leaf"},
    },
    "additionalProperties": False,
    "$defs": {"leaf": {"anyOf": [{"type": "boolean"}, {"const": "none"}]}},
}
LFM2 = "<|tool_call_start|>[f({})]<|tool_call_end|>"
GEMMA = "<|tool_call>call:f{{{}}}<tool_call|>"
VALUES = [
    ("lfm2", LFM2, 'a=1, tags=["x", "y"], deep={"x": None, "on": True}, kind="p"', True),
    ("lfm2", LFM2, "tags=[], deep={}, tree=False", True),
    ("lfm2", LFM2, 'tree="none"', True),
    ("lfm2", LFM2, "", True),
    ("lfm2", LFM2, "a=10", False),
    ("lfm2", LFM2, "tags=[1]", False),
    ("lfm2", LFM2, "deep={x: 1}", False),
    ("lfm2", LFM2, "tags=[], a=1", False),
    ("lfm2", LFM2, "a=1,", False),
    ("lfm2", LFM2, 'kind="r"', False),
    ("lfm2", LFM2, 'tree="all"', False),
    ("gemma4", GEMMA, 'a:1,deep:{on:true,x:-1.5},kind:<|"|>p<|"|>,tags:[<|"|>"}<|"|>]', True),
    ("gemma4", GEMMA, "deep:{x:null},tree:false", True),
    ("gemma4", GEMMA, "", True),
    ("gemma4", GEMMA, "tree:false,deep:{}", False),
    ("gemma4", GEMMA, "kind:p", False),
    ("gemma4", GEMMA, "tags:[1]", False),
    ("qwen3_coder", "<tool_call>\n<function=f>\n{}</function>\n</tool_call>", "", True),
]
"""Formats, a call, its arguments, and whether they fit the schema."""


@pytest.mark.parametrize(("name", "call", "arguments", "fits"), VALUES)
def test_values_that_are_not_json_keep_to_the_schema(
    library: tuple[Library, Tokenizer], name: str, call: str, arguments: str, fits: bool
) -> None:
    made, tokenizer = library
    tag = forced_tag(form_of(name), "", {"f": NESTED}, None)
    assert tag is not None
    definition = StructuredOutputs(structural_tag={"format": tag}).definition()
    matcher = made.matcher(made.source(definition))
    text = call.format(arguments)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    whole = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
    assert whole is fits
    if fits:
        parser = tool_parser(name, "")({"f": NESTED})
        events = [*parser.push(text), *parser.finish()]
        said = "".join(event.text for event in events if isinstance(event, CallArguments))
        jsonschema.validate(json.loads(said), NESTED)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>"),
        ("seed_oss", "<seed:tool_call>\n<function=f>\n<parameter=a>{}</parameter>\n</function>"),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"),
        ("gemma4", '<|tool_call>call:f{{a:<|"|>{}<|"|>}}<tool_call|>'),
    ],
)
def test_lengths_of_texts_without_quotes(
    library: tuple[Library, Tokenizer], name: str, call: str
) -> None:
    made, tokenizer = library
    text = {"type": "string", "minLength": 2, "maxLength": 5}
    schema = {"type": "object", "properties": {"a": text}, "required": ["a"]}
    tag = forced_tag(form_of(name), "", {"f": schema}, None)
    definition = StructuredOutputs(structural_tag={"format": tag}).definition()
    source = made.source(definition)

    def fits(value: str) -> bool:
        ids = tokenizer.encode(call.format(value), add_special_tokens=False).ids
        return bool(made.matcher(source).try_consume_tokens(ids) == len(ids))

    assert [fits("é" * length) for length in range(8)] == [2 <= each <= 5 for each in range(8)]
    assert fits("<\n>")
    assert not fits("</parameter></parameter>")


@pytest.mark.parametrize("name", ["lfm2", "gemma4"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "array", "minItems": 2}}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        {"type": "object", "properties": {"a": {"not": {"type": "null"}}}},
    ],
)
def test_what_values_that_are_not_json_cannot_express(name: str, schema: Any) -> None:
    assert forced_tag(form_of(name), "", {"f": schema}, None) is None


def test_many_optional_values_take_little_room() -> None:
    properties = {f"p{at}": {"type": "integer"} for at in range(200)}
    tag = forced_tag(form_of("lfm2"), "", {"f": {"type": "object", "properties": properties}}, None)
    assert len(json.dumps(tag)) < 200 * 250
