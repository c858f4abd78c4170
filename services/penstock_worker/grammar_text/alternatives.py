"""Which of several schemas is at fault, where the compiler's complaint doesn't say.

A call that must be one of several tools' is an array of alternatives, each with a schema of the
client's, and one that may be is alternatives alone: without its place a complaint is of no use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from penstock.protocol.common import Grammar
from penstock_worker.grammar_text.errors import GrammarError

PATHS = (("items", "anyOf"), ("anyOf",))
"""Paths in a schema at which alternatives are looked for."""
PATIENCE = 0.8
"""Seconds of the processor for all of it, and for the whole schema before: together they are a
trial, which may take more."""


def located(definition: Grammar, complaint: str, compile: Callable[[Grammar], object]) -> str:
    """The complaint about a grammar, with the place of the alternative that it is about, if it is
    alternatives or an array of them. compile: raises GrammarError."""
    if definition.kind != "json_schema":
        return complaint
    schema = json.loads(definition.text)
    path = next((path for path in PATHS if isinstance(_at(schema, path), list)), None)
    if path is None or (place := f"/{'/'.join(path)}/") in complaint:
        return complaint
    suspects = range(len(_at(schema, path)))
    end = time.process_time() + PATIENCE
    found = None
    # The first of them that fails, by halves: all of it costs about as much as the whole schema.
    while suspects:
        if time.process_time() > end:
            return complaint
        half = suspects[: (len(suspects) + 1) // 2]
        error = _error(_only(schema, path, half), compile)
        if error is not None and len(half) == 1:
            found = f"at {place}{half[0]}: {error}"
            break
        suspects = half if error is not None else suspects[len(half) :]
    return found or complaint


def _error(schema: Any, compile: Callable[[Grammar], object]) -> GrammarError | None:
    """Why the schema can't be compiled; None: it can."""
    try:
        compile(Grammar("json_schema", json.dumps(schema)))
    except GrammarError as error:
        return error
    return None


def _at(schema: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        schema = schema.get(key) if isinstance(schema, dict) else None
    return schema


def _only(schema: Any, path: tuple[str, ...], kept: range) -> Any:
    """The schema with these alternatives alone, at their places: references lead to them."""
    if path:
        return {**schema, path[0]: _only(schema[path[0]], path[1:], kept)}
    null = {"type": "null"}
    return [each if at in kept else null for at, each in enumerate(schema)]
