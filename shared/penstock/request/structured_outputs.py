"""StructuredOutputs: what a text must look like. Names as in vLLM's StructuredOutputsParams."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Collection
from typing import Any, NoReturn

import msgspec

from penstock.errors import InvalidRequest
from penstock.protocol.common import Grammar, GrammarKind

MAX_CHOICES = 4096
PARAM = "structured_outputs"
GBNF_RULE = re.compile(r"(?m)^[^\S\n]*+[A-Za-z0-9_-]++[^\S\n]*+::=")
"""The beginning of a rule of GBNF. The expression never goes back: a line of blanks takes as long
as another of its length."""


class StructuredOutputs(msgspec.Struct, kw_only=True, frozen=True):
    """Exactly one of the fields. Checked when it is made; InvalidRequest says what is wrong.

    json: a JSON schema, as a dict or as text; the output is a JSON text that it admits.
    regex: a regular expression that the whole output matches.
    choice: the output is one of these strings.
    grammar: a grammar in llguidance's dialect of Lark, with the rule `start`; or one as llama.cpp
        has them (GBNF), with the rule `root`: it is one if a line has a rule's ::= in it.
    json_object: True: the output is any JSON object.
    structural_tag: free text in which certain tags have contents of a certain form, as a dict or
        as JSON text, in either of vLLM's shapes.

    Whether a schema, expression or grammar can be compiled is the engine's to say, when the request
    is submitted.  The output may still end early, by max_tokens or a stop string.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None

    def __post_init__(self) -> None:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidRequest(
                "structured_outputs needs exactly one of json, regex, choice, grammar, "
                f"json_object and structural_tag; it has {', '.join(given) or 'none'}",
                param=PARAM,
            )
        if self.json_object is not None and self.json_object is not True:
            _refuse("json_object can only be true")
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not text):
                _refuse(f"{name} must be a string that isn't empty")
        if self.choice is not None:
            _check_choice(self.choice)
        self.definition()

    def definition(self) -> Grammar:
        """Returns the grammar in the engine's form."""
        if self.json is not None:
            return Grammar("json_schema", _json_text("json", self.json))
        if self.regex is not None:
            return Grammar("regex", _unicode("regex", self.regex))
        if self.choice is not None:
            text = json_module.dumps(list(self.choice), ensure_ascii=False)
            return Grammar("choice", _unicode("choice", text))
        if self.grammar is not None:
            kind: GrammarKind = "gbnf" if GBNF_RULE.search(self.grammar) else "lark"
            return Grammar(kind, _unicode("grammar", self.grammar))
        if self.structural_tag is not None:
            return Grammar("structural_tag", _json_text("structural_tag", self.structural_tag))
        return Grammar("json_object")

    def grammar_within(self, max_bytes: int, kinds: Collection[str]) -> Grammar:
        """`definition`. Raises InvalidRequest where it is larger than the engine takes, or of a
        kind that the engine doesn't know."""
        definition = self.definition()
        if not max_bytes:
            _refuse("this engine core is too old for them")
        if definition.kind not in kinds:
            _refuse(f"this engine core is too old for a {definition.kind} grammar")
        size = len(definition.text.encode())
        if size > max_bytes:
            _refuse(f"it has {size} bytes; at most {max_bytes} are allowed")
        return definition


def _json_text(name: str, given: str | dict[str, Any]) -> str:
    what = "a JSON schema" if name == "json" else "a structural tag"
    if isinstance(given, str):
        text = given
        try:
            parsed = json_module.loads(given)
        except (ValueError, RecursionError) as error:
            _refuse(f"{name} is not {what}: {error}")
    else:
        parsed = given
        try:
            text = json_module.dumps(given, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            _refuse(f"{name} can't be written as JSON: {error}")
    if not isinstance(parsed, dict) and not (name == "json" and isinstance(parsed, bool)):
        _refuse(f"{name} must be {what}: an object, not {type(parsed).__name__}")
    return _unicode(name, text)


def _check_choice(choice: list[str]) -> None:
    if not isinstance(choice, (list, tuple)) or not 1 <= len(choice) <= MAX_CHOICES:
        _refuse(f"choice must be a list of 1 to {MAX_CHOICES} strings")
    for text in choice:
        if not isinstance(text, str) or not text:
            _refuse(f"each choice must be a string that isn't empty, not {text!r}")


def _unicode(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(f"{name} is not valid Unicode: it holds lone surrogates")
    return text


def _refuse(complaint: str) -> NoReturn:
    raise InvalidRequest(f"structured_outputs: {complaint}", param=PARAM)
