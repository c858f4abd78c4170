"""From a definition to llguidance's own text, and bounds that it has no option for."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from penstock.protocol.common import Grammar
from penstock.request.structured_outputs import GBNF_RULE
from penstock_worker.grammar_text.errors import GrammarError
from penstock_worker.grammar_text.schemas.served import served
from penstock_worker.grammar_text.structural_tag import to_grammar

MAX_MESSAGE = 500
"""Characters of the library's complaint that a client is shown."""


def source_of(library: Any, definition: Grammar, special: Mapping[str, int]) -> str:
    """library: llguidance.  special: ids of special tokens by text.  Raises GrammarError."""
    try:
        return _source(library, definition, special)
    except ValueError as error:
        raise GrammarError(str(error)[:MAX_MESSAGE]) from error
    except RecursionError:
        raise GrammarError("it is nested too deeply (recursion limit)") from None


def _source(library: Any, definition: Grammar, special: Mapping[str, int]) -> str:
    compile = library.LLMatcher
    match definition.kind:
        case "json_schema":
            text = schema_text(library, json.loads(definition.text))
            return str(compile.grammar_from_json_schema(text))
        case "json_object":
            text = schema_text(library, {"type": "object"})
            return str(compile.grammar_from_json_schema(text))
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
            tag = json.loads(definition.text)
            part = partial(schema_text, library, followed=False)
            return to_grammar(tag, special, part, _lark_of)
    raise GrammarError(f"no such kind of grammar: {definition.kind}")


def schema_text(library: Any, schema: Any, *, followed: bool = True) -> str:
    """A JSON schema as the library serves it, with options. followed: as `served` has it.  Raises
    GrammarError."""

    def complaint(served_so_far: Any) -> str:
        grammar = library.LLMatcher.grammar_from_json_schema(json.dumps(served_so_far))
        return str(library.LLMatcher.validate_grammar(grammar))

    return json.dumps(served(schema, complaint, followed=followed), ensure_ascii=False)


def _choices(definition: Grammar) -> list[str]:
    choices = json.loads(definition.text)
    if not isinstance(choices, list) or not choices or not all(type(c) is str for c in choices):
        raise GrammarError("choice must be a list of at least one string")
    return choices


def _lark_of(text: str) -> str:
    return _from_gbnf(text) if GBNF_RULE.search(text) else text


def _from_gbnf(text: str) -> str:
    try:
        return str(importlib.import_module("llguidance.gbnf_to_lark").gbnf_to_lark(text))
    except Exception as error:
        raise GrammarError(f"not a GBNF grammar: {error}"[:MAX_MESSAGE]) from error
