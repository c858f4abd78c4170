"""Which of several schemas is at fault, where the compiler's complaint doesn't say.

A call that must be one of several tools' is an array of alternatives, each with a schema of the
client's: without its place a complaint is of no use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from penstock.protocol.common import Grammar
from penstock_worker.grammar_text.errors import GrammarError

PLACE = "/items/anyOf/"
PATIENCE = 0.5
"""Seconds of the processor for all of it: it is part of a trial, which may take four times that."""


def located(definition: Grammar, complaint: str, compile: Callable[[Grammar], object]) -> str:
    """The complaint about a grammar, with the place of the alternative that it is about, if it is
    an array of alternatives. compile: raises GrammarError."""
    if definition.kind != "json_schema" or PLACE in complaint:
        return complaint
    schema = json.loads(definition.text)
    alternatives = _alternatives(schema)
    end = time.process_time() + PATIENCE
    for place in range(len(alternatives)):
        if time.process_time() > end:
            break
        alone = Grammar("json_schema", json.dumps(_only(schema, place)))
        try:
            compile(alone)
        except GrammarError as error:
            return f"at {PLACE}{place}: {error}"
    return complaint


def _alternatives(schema: Any) -> list[Any]:
    items = schema.get("items") if isinstance(schema, dict) else None
    found = items.get("anyOf") if isinstance(items, dict) else None
    return found if isinstance(found, list) else []


def _only(schema: dict[str, Any], place: int) -> dict[str, Any]:
    """The schema with this alternative alone, at its place: references lead to it."""
    null = {"type": "null"}
    kept = [each if at == place else null for at, each in enumerate(_alternatives(schema))]
    return {**schema, "items": {**schema["items"], "anyOf": kept}}
