"""A case of a format: what a model wrote, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TOOLS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "deep": {"type": "object", "additionalProperties": {}},
            "tags": {"type": "array", "items": {"type": "string"}},
            "sure": {"type": "boolean"},
            "unit": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]},
        },
        "$defs": {"Unit": {"enum": ["C", "F"]}},
    },
    "add": {"type": "object", "properties": {"a": {"type": "number"}, "b": {}}},
    "now": None,
}
"""What the requests of all cases offer, with the schemas of their arguments."""

Called = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """text: the answer.  calls: names and arguments.  prompt: the filled template's end.
    ids: the calls' own."""

    text: str
    said: str = ""
    thought: str = ""
    calls: tuple[Called, ...] = ()
    prompt: str = ""
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class FormatCases:
    """The cases of one family. tools, thoughts: names of its parsers; empty: none.
    tokens: marks that its tokenizer has as tokens.  templates: the files of releases that write it,
    whose calls are read back, and which whole turns are tried with.  called: those of which only a
    call is tried.  recognised: of those that transformers' filters refuse, so that they are only
        recognised.
    """

    tools: str
    thoughts: str
    cases: tuple[Case, ...]
    templates: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    recognised: tuple[str, ...] = ()


PARIS: Called = ("get_weather", {"city": "Paris"})
SUM: Called = ("add", {"a": 1, "b": [2.5, "x"]})
NOW: Called = ("now", {})
