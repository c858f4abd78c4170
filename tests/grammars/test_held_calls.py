"""Calls that a model chooses to make: until one begins, and behind it, all text is free; the call
is held to its tool's schema, if the tool is strict. For each format, over a tokenizer that has its
marks as tokens, and over one that spells them out."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from penstock.parsing import reasoning_parser
from penstock.parsing.format import CallFormat, ThoughtFormat
from penstock.parsing.formats import FORMATS
from penstock.parsing.held_calls import held_text
from penstock.request.structured_outputs import StructuredOutputs
from penstock_grammars.library import Library
from penstock_worker.grammar.errors import GrammarError
from tests.grammars.forced_cases import CASES, TOOLS, WRITTEN
from tests.grammars.test_forced_formats import form_of

pytestmark = pytest.mark.timeout(300)

EOS = 2
FREE: dict[str, Any] = {**TOOLS, "get_weather": None}
"""The tools, one of which isn't strict."""
OTHER = "<|other|>"
"""A special token that is no mark."""
Admits = Callable[..., bool]
BARE_ONLY = {"llama3_json", "llama4_pythonic"}
"""Formats whose calls are written without marks: the answer must begin with them."""


@pytest.fixture(scope="module")
def admits(default_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Admits:
    """Whether the grammar of free text with calls in a format admits a text."""

    @cache
    def library(*marks: str) -> tuple[Library, Tokenizer]:
        tokenizer = Tokenizer.from_file(str(default_folder / "tokenizer.json"))
        tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in (*marks, OTHER)])
        path = tmp_path_factory.mktemp("marks") / "tokenizer.json"
        tokenizer.save(str(path))
        return Library(path, tokenizer.get_vocab_size(), (EOS,)), tokenizer

    @cache
    def source(made: Library, tag: str) -> str:
        source = made.source(StructuredOutputs(structural_tag=json.loads(tag)).definition())
        made.probe(source)
        return source

    def admits(
        name: str,
        text: str,
        *,
        template: str = "",
        tools: dict[str, Any] = TOOLS,
        thoughts: str = "none",
        prompt: str = "",
        tokens: bool | tuple[str, ...] = True,
        whole: bool = True,
    ) -> bool:
        form = form_of(name)
        thinking = reasoning_parser(thoughts, "")
        block = None if thinking is None else thinking.form
        assert block is None or isinstance(block, ThoughtFormat)
        if isinstance(tokens, bool):
            tokens = (*form.tokens, *(block.tokens if block else ())) if tokens else ()
        made, tokenizer = library(*tokens)
        tag = held_text(form, template, tools, block, prompt)
        matcher = made.matcher(source(made, json.dumps({"format": tag})))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(ids) == len(ids) and (
            not whole or bool(matcher.is_accepting())
        )

    return admits


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize(("name", "template", "one", "between", "other"), CASES)
def test_calls_are_held_and_all_else_is_free(
    admits: Admits, name: str, template: str, one: str, between: str, other: str, tokens: bool
) -> None:
    def fits(text: str, **more: Any) -> bool:
        return admits(name, text, template=template, tokens=tokens, **more)

    both = f"{one}{between}{other}"
    assert fits(both)
    assert fits("No call: {[<tool <｜ </function>\n" + OTHER)
    assert fits("")
    assert not fits(both.replace("now", "then"), whole=False)
    assert not fits(both.replace("3", '"3"'), whole=False)
    assert not fits(both.replace("city", "town"), whole=False)
    assert fits(both.replace("city", "town"), tools=FREE)
    assert not fits(both.replace("now", "then"), tools=FREE, whole=False)
    assert not fits(one[:-1])
    if name not in BARE_ONLY:
        assert fits(f"Well {OTHER}.\n{both}\nDone.{OTHER}{both}{OTHER}")
        assert not fits(f"Well.\n{both.replace('city', 'town')}", whole=False)
        assert not fits(f"{both}\nDone. {both.replace('city', 'town')}", whole=False)


def test_every_format_that_is_written_is_tried() -> None:
    written = {form.name for form in FORMATS if isinstance(form, CallFormat) and form.written}
    assert written == set(WRITTEN)


QWEN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x"}}\n</tool_call>'
BAD = CALL.replace("city", "town")
BARE = '{"name": "get_weather", "arguments": {"city": "x"}}'


@pytest.mark.parametrize("tokens", [QWEN, ()])
def test_thoughts_are_free_and_what_comes_after_them_is_held(
    admits: Admits, tokens: tuple[str, ...]
) -> None:
    def fits(text: str, prompt: str = "", **more: Any) -> bool:
        return admits("hermes", text, thoughts="qwen3", tokens=tokens, prompt=prompt, **more)

    thought = f"<think>Perhaps {BAD}?{OTHER}</think>\n\n"
    assert fits(f"{thought}Well.\n{CALL}")
    assert fits(f"\n{thought}{CALL}\n{CALL}")
    assert fits(f"{thought}{BARE}")
    assert not fits(f"{thought}Well.\n{BAD}", whole=False)
    assert not fits(f"{thought}{BARE.replace('city', 'town')}", whole=False)
    assert fits(CALL)
    assert not fits(BAD, whole=False)
    for several in (f"[{BARE}, {BARE}]", f"{BARE}\n{BARE}", f"```json\n{BARE},\n{BARE}\n```"):
        assert fits(f"{thought}{several}")
        assert fits(f"{several}\nDone.")
        assert not fits(f"{thought}{several.replace('city', 'town')}", whole=False)
        other = several.rpartition("city")
        assert not fits(f"{other[0]}town{other[2]}", whole=False)
    inside = "assistant\n<think>\n"
    assert fits(thought.removeprefix("<think>") + CALL, inside)
    assert fits(thought + CALL, inside)
    assert not fits(f"Hm.</think>{BAD}", inside, whole=False)
    assert not fits(BAD, "<think>\n\n</think>\n\n", whole=False)


@pytest.mark.parametrize("tokens", [QWEN, ()])
def test_a_mark_that_is_text_holds_where_it_is_spelled_out(
    admits: Admits, tokens: tuple[str, ...]
) -> None:
    """A reader that goes by the text takes it for the mark, whatever its tokens are."""
    assert admits("qwen3_coder", "<function=now>\n</function> Done.", tokens=tokens)
    assert not admits("qwen3_coder", "<function=then>", tokens=tokens, whole=False)
    matched = admits("hermes", BAD.replace("<tool_call>", "<tool_call"), tokens=tokens)
    assert matched, "that is no mark"


def test_calls_without_marks_are_held_where_an_answer_begins_with_one(admits: Admits) -> None:
    bad = BARE.replace("city", "town")
    for before in ("", "\n", "```json\n", "```\n"):
        assert admits("hermes", f"{before}{BARE}\n``` Done.")
        assert not admits("hermes", before + bad, whole=False)
        assert admits("hermes", before + bad, tools=FREE)
    spaced = '{ "name" : "get_weather" , "parameters" : {"city": "x"} }'
    assert admits("hermes", spaced)
    assert not admits("hermes", spaced.replace("city", "town"), whole=False)
    assert admits("hermes", f"Like this: {bad}")
    assert admits("hermes", '{"name": "Ann", "arguments": 2}')
    llama = BARE.replace("arguments", "parameters")
    for mark in ("", "<|python_tag|>"):
        assert admits("llama3_json", f"{mark}{llama}; {llama}")
        assert not admits("llama3_json", f"{mark}{llama}; {llama.replace('city', 'town')}")
    assert admits("llama3_json", f"See: {llama.replace('city', 'town')}")


def test_what_cannot_be_expressed_is_free(admits: Admits) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}}}
    call = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    for value in ("xx", "y"):
        assert admits("qwen3_coder", call.format(value), tools={"f": schema, **TOOLS})


TAG = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": ""}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"triggers": [1]}, "text_with_tags needs triggers"),
        ({"triggers": ["<b>"]}, "has no trigger for a tag"),
        ({"starts": 7}, "needs starts, a list"),
        ({"starts": [7]}, "starts needs pattern"),
        ({"spelled": {}}, "needs spelled, a list"),
        ({"thoughts": 1}, "thoughts needs begin"),
        ({"thoughts": {"begin": ""}}, "thoughts needs end"),
        ({"tags": [{**TAG, "content": {"type": "shared", "index": 0}}]}, "has the index 0"),
        ({"tags": [{**TAG, "content": {"type": "shared"}}]}, "needs index, a number"),
        ({"shared": [{}]}, "format needs type"),
        ({"shared": [{"type": "members", "members": [1], "separator": ""}]}, "members needs begin"),
    ],
)
def test_a_node_that_is_malformed_is_refused(
    default_folder: Path, fields: dict[str, Any], says: str
) -> None:
    """Clients can send it, too."""
    library = Library(default_folder / "tokenizer.json", 49152, (EOS,))
    node = {"type": "text_with_tags", "triggers": ["<a>"], "tags": [TAG], **fields}
    definition = StructuredOutputs(structural_tag={"format": node}).definition()
    with pytest.raises(GrammarError, match=says):
        library.source(definition)
