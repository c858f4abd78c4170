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
PATIENCE = 0.8
"""Seconds of the processor for all of it, and for the whole schema before: together they are a
trial, which may take more."""


def located(definition: Grammar, complaint: str, compile: Callable[[Grammar], object]) -> str:
    """The complaint about a grammar, with the place of the alternative that it is about, if it is
    an array of alternatives. compile: raises GrammarError."""
    if definition.kind != "json_schema" or PLACE in complaint:
        return complaint
    schema = json.loads(definition.text)
    suspects = range(len(_alternatives(schema)))
    end = time.process_time() + PATIENCE
    found = None
    # The first of them that fails, by halves: all of it costs about as much as the whole schema.
    while suspects:
        if time.process_time() > end:
            return complaint
        half = suspects[: (len(suspects) + 1) // 2]
        error = _error(schema, half, compile)
        if error is not None and len(half) == 1:
            found = f"at {PLACE}{half[0]}: {error}"
            break
        suspects = half if error is not None else suspects[len(half) :]
    return found or complaint


def _error(
    schema: dict[str, Any], kept: range, compile: Callable[[Grammar], object]
) -> GrammarError | None:
    """Why the schema can't be compiled with these of its alternatives alone; None: it can."""
    try:
        compile(Grammar("json_schema", json.dumps(_only(schema, kept))))
    except GrammarError as error:
        return error
    return None


def _alternatives(schema: Any) -> list[Any]:
    items = schema.get("items") if isinstance(schema, dict) else None
    found = items.get("anyOf") if isinstance(items, dict) else None
    return found if isinstance(found, list) else []


def _only(schema: dict[str, Any], kept: range) -> dict[str, Any]:
    """The schema with these alternatives alone, at their places: references lead to them."""
    null = {"type": "null"}
    left = [each if at in kept else null for at, each in enumerate(_alternatives(schema))]
    return {**schema, "items": {**schema["items"], "anyOf": left}}
