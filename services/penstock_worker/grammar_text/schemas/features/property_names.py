"""`propertyNames`: all properties whose names don't fit are ruled out."""

from __future__ import annotations

from typing import Any

from penstock_worker.grammar_text.schemas.combining import any_of
from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.keywords import (
    NARROWED,
    OPPOSITE,
    Schema,
    is_narrowed,
)
from penstock_worker.grammar_text.schemas.other_texts import literal
from penstock_worker.grammar_text.schemas.values import listed

_TEXT = frozenset({"type", "pattern", "minLength", "maxLength", NARROWED, OPPOSITE})


class PropertyNames(Feature):
    keywords = ("propertyNames",)

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        names = node["propertyNames"]
        in_part = is_narrowed(names, context.definitions)
        marked = {NARROWED: "these propertyNames are supported in part"} if in_part else {}
        if "string" not in context.kinds(names):
            empty = any_of(context.or_of_other_type("object", node, [{"const": {}}]))
            return [empty | marked if isinstance(empty, dict) else empty]
        pattern = _pattern(names, context)
        if pattern is None:
            return []
        return [{"patternProperties": {pattern: True}, "additionalProperties": False} | marked]


def _pattern(names: Any, context: Context) -> str | None:
    """A regular expression for names; None where any will do."""
    names = context.resolved(names)
    if isinstance(names, bool) or not names:
        return None
    values = listed(names)
    if values is not None and not names.keys() - {"const", "enum", "type"}:
        texts = [literal(value) for value in values if isinstance(value, str)]
        return f"^(?:{'|'.join(texts)})$"
    if names.keys() <= {"anyOf", "type"} and "anyOf" in names:
        of_text = [each for each in names["anyOf"] if "string" in context.kinds(each)]
        options = [_pattern(each, context) for each in of_text]
        if None in options:
            return None
        return "|".join(f"(?:{option})" for option in options)
    if names.keys() - _TEXT:
        unknown = ", ".join(sorted(names.keys() - _TEXT))
        raise Unservable(f"propertyNames with {unknown} is not supported")
    bounded = "minLength" in names or "maxLength" in names
    if bounded and "pattern" in names:
        raise Unservable("propertyNames with both a pattern and a length is not supported")
    if bounded:
        return f"^(?s:.){{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    return names.get("pattern")
