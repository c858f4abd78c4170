"""Free thoughts, then what a grammar admits: by structural tags, over a tokenizer whose marks are
tokens that its file doesn't call special, as Qwen3's are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from penstock.errors import InvalidRequest
from penstock.parsing import reasoning_parser, tool_parser
from penstock.parsing.forced_grammar import forced_tag
from penstock.parsing.formats.json_calls import HERMES
from penstock.protocol.common import Grammar
from penstock.request.structured_outputs import PARAM, StructuredOutputs
from penstock_gateway.chat.answer_grammar import answer_grammar
from penstock_gateway.chat.endpoint import blame_tool
from penstock_gateway.chat.tools import FunctionDefinition, Tool, ToolUse
from penstock_grammars.compiler import Compiler
from penstock_worker.grammar.errors import GrammarError

pytestmark = pytest.mark.timeout(300)

EOS = 2
PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
}
ANSWERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "schema": ({"type": "json_schema", "json_schema": PERSON}, '{"age": 7}', "seven"),
    "regex": ({"type": "regex", "pattern": "[a-c]{2}/x"}, "ab/x", "ab"),
    "lark": ({"type": "grammar", "grammar": 'start: "yes" | "no"'}, "no", "perhaps"),
    "gbnf": ({"type": "grammar", "grammar": 'root ::= "yes" | "no"'}, "yes", "perhaps"),
}
"""The format, an answer, and a text that is none, by kind."""


@pytest.fixture(scope="module")
def folder(default_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = json.loads((default_folder / "tokenizer.json").read_text("utf-8"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    made["added_tokens"] += [
        {"id": 49152 + at, "content": content, "special": False, **flags}
        for at, content in enumerate(("<think>", "</think>"))
    ]
    folder = tmp_path_factory.mktemp("thinker")
    (folder / "tokenizer.json").write_text(json.dumps(made), "utf-8")
    return folder


@pytest.fixture(scope="module")
def compiler(folder: Path) -> Iterator[Compiler]:
    made = Compiler(folder / "tokenizer.json", 49154, (EOS,))
    yield made
    made.close()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def thoughtful(answer: dict[str, Any]) -> Grammar:
    thoughts = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}}
    elements = [{**thoughts, "end": "</think>"}, {"type": "regex", "pattern": r"\s*"}, answer]
    tag = {"format": {"type": "sequence", "elements": elements}}
    return Grammar("structural_tag", json.dumps(tag))


@pytest.mark.parametrize("kind", ANSWERS)
def test_whatever_the_answer_must_be_the_thoughts_are_free(
    compiler: Compiler, tokenizer: Tokenizer, kind: str
) -> None:
    answer, fits, other = ANSWERS[kind]
    compiled = compiler(thoughtful(answer))
    thought = tokenizer.encode(f'<think>\nHm: {other}, or "{fits}"?\n</think>').ids
    assert thought[0] == 49152
    assert thought[-1] == 49153
    matcher = compiled.matcher()
    matcher.advance(thought[:-1])
    assert matcher.allowed()[49153]
    assert not matcher.allowed()[EOS]
    matcher.advance([49153, *tokenizer.encode("\n\n" + fits).ids])
    assert matcher.allowed()[EOS]
    matcher = compiled.matcher()
    matcher.advance(thought)
    with pytest.raises(GrammarError):
        matcher.advance([*tokenizer.encode("\n" + other).ids, EOS])


def test_which_tool_is_at_fault_is_said_after_thoughts_too(compiler: Compiler) -> None:
    """Also that a schema can be compiled and then not followed."""
    bad = {"type": "string", "pattern": "(?=a)(?!b)c"}
    items = [{"properties": {"parameters": schema}} for schema in (PERSON, bad, PERSON)]
    calls = {"type": "array", "minItems": 1, "items": {"anyOf": items}}
    with pytest.raises(GrammarError, match="at /items/anyOf/1/"):
        compiler(thoughtful({"type": "json_schema", "json_schema": calls}))


def test_which_of_many_tools_is_at_fault_is_said_in_the_model_s_own_format(
    compiler: Compiler,
) -> None:
    tools: dict[str, Any] = {f"f{index}": PERSON for index in range(20)}
    tools["f13"] = {"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}}
    tag = forced_tag(HERMES, "", tools, None)
    assert tag is not None
    with pytest.raises(GrammarError, match=r"at /<tool>/13\b"):
        compiler(thoughtful(tag))


BAD = {"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}}
GOOD = {"type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("calls", "thoughts"), [("openai", "openai"), ("hermes", "qwen3"), ("json", ""), ("glm45", "")]
)
@pytest.mark.parametrize("bad", ["answer", "first", "second", "answer, as a tool's"])
def test_beside_tools_a_complaint_names_the_field_with_the_bad_schema(
    compiler: Compiler, calls: str, thoughts: str, bad: str
) -> None:
    """An answer's schema may look like that of calls."""
    schemas = {"first": GOOD, "second": GOOD, "answer": {"items": {"anyOf": [GOOD, GOOD]}}}
    if bad in schemas:
        schemas[bad] = BAD
    else:
        schemas["answer"] = {"items": {"anyOf": [GOOD, BAD]}}
    answer = schemas.pop("answer")
    tools = [Tool(function=FunctionDefinition(name=n, parameters=s)) for n, s in schemas.items()]
    use = ToolUse(tuple(tools), "free")
    form = reasoning_parser(thoughts, "")
    outputs = answer_grammar(
        StructuredOutputs(json=answer),
        use,
        tool_parser(calls, "").form,
        None if form is None else form.form,
        "<|start|>assistant" if calls == "openai" else "",
    )
    assert outputs is not None
    free = calls == "glm45" and bad in ("first", "second")
    if free:  # What follows its mark is any text.
        compiler(outputs.definition())
        return
    with pytest.raises(GrammarError) as caught:
        compiler(outputs.definition())
    error = InvalidRequest(f"{PARAM}: {caught.value}", param=PARAM)
    told = blame_tool(error, use, tools, "response_format")
    place = {"first": "tools[0].function.parameters", "second": "tools[1].function.parameters"}
    assert told.param == place.get(bad, "response_format")
    assert "<tool>" not in told.message
