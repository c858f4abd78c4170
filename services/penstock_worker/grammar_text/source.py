"""From a definition to llguidance's own text, and bounds that it has no option for."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any

from penstock.protocol.common import Grammar
from penstock_worker.grammar_text.closed_objects import closed
from penstock_worker.grammar_text.errors import GrammarError
from penstock_worker.grammar_text.structural_tag import to_grammar

MAX_OPTIONAL = 240
"""Optional properties of one object. The library follows each in four ways at once, and gives up at
compile.MAX_ITEMS_IN_ROW: in the middle of an output, were it not refused here."""

WHITESPACE = r"[\x20\x0A\x0D\x09]{0,16}"
"""Between the parts of a JSON text. Bounded: small models go on with spaces for ever."""

MAX_MESSAGE = 500
"""Characters of the library's complaint that a client is shown."""


def source_of(library: Any, definition: Grammar, special: Mapping[str, int]) -> str:
    """library: llguidance.  special: ids of special tokens by text.  Raises GrammarError."""
    try:
        return _source(library, definition, special)
    except ValueError as error:
        raise GrammarError(str(error)[:MAX_MESSAGE]) from error
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None


def _source(library: Any, definition: Grammar, special: Mapping[str, int]) -> str:
    compile = library.LLMatcher
    match definition.kind:
        case "json_schema":
            return _from_schema(compile, definition.text)
        case "json_object":
            return _from_schema(compile, '{"type": "object"}')
        case "regex":
            return str(compile.grammar_from_regex(definition.text))
        case "choice":
            texts = [json.dumps(text, ensure_ascii=False) for text in _choices(definition)]
            return str(compile.grammar_from_lark("start: " + " | ".join(texts)))
        case "lark":
            return str(compile.grammar_from_lark(definition.text))
        case "gbnf":
            return str(compile.grammar_from_lark(_from_gbnf(definition.text)))
        case "structural_tag":
            return to_grammar(json.loads(definition.text), special)
    raise GrammarError(f"no such kind of grammar: {definition.kind}")


def _from_schema(compile: Any, schema: str) -> str:
    # Its complaints name the place; the library's name one in a text of its own.
    parsed = json.loads(schema)
    check_schema(parsed)
    # The same as true, and the library takes options for objects only.
    schema = "{}" if parsed is True else json.dumps(closed(parsed), ensure_ascii=False)
    options = {"whitespace_pattern": WHITESPACE}
    return str(compile.grammar_from_json_schema(schema, overrides=options))


def check_schema(schema: Any) -> None:
    """Raises GrammarError for an object with too many optional properties, at any depth."""
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack += node
        elif isinstance(node, dict):
            stack += node.values()
            properties, required = node.get("properties"), node.get("required")
            if isinstance(properties, dict) and len(properties) > MAX_OPTIONAL:
                names = {n for n in required if isinstance(n, str)} if required else set()
                count = len(properties.keys() - names)
                if count > MAX_OPTIONAL:
                    raise GrammarError(
                        f"an object has {count} optional properties; at most {MAX_OPTIONAL} are "
                        "allowed (any number may be required)"
                    )


def _choices(definition: Grammar) -> list[str]:
    choices = json.loads(definition.text)
    if not isinstance(choices, list) or not choices or not all(type(c) is str for c in choices):
        raise GrammarError("choice must be a list of at least one string")
    return choices


def _from_gbnf(text: str) -> str:
    try:
        return str(importlib.import_module("llguidance.gbnf_to_lark").gbnf_to_lark(text))
    except Exception as error:
        raise GrammarError(f"not a GBNF grammar: {error}"[:MAX_MESSAGE]) from error
