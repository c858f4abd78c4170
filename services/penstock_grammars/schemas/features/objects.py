"""Keywords of objects, and those of what nothing else evaluates."""

from __future__ import annotations

from typing import Any

from penstock_grammars.schemas.combining import all_of, any_of, part_of_object
from penstock_grammars.schemas.complement import literal
from penstock_grammars.schemas.features.interface import Context, Feature
from penstock_grammars.schemas.keywords import (
    NARROWED,
    OPPOSITE,
    Schema,
    Unservable,
    is_narrowed,
)
from penstock_grammars.schemas.values import listed

# `dependencies`, `dependentRequired` and `dependentSchemas`: a property is absent, or it is there
# with what it needs.

MAX_NAMES = 8
"""Properties that need something: each doubles the ways to go on."""


class Dependencies(Feature):
    keywords = ("dependencies", "dependentRequired", "dependentSchemas")

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        within = context.plain(node)
        if "object" not in context.kinds(within):
            return []
        required, properties = within.get("required", ()), within.get("properties", {})
        needs: dict[str, list[Schema]] = {}
        for keyword in self.keywords:
            for name, needed in node.get(keyword, {}).items():
                needs.setdefault(name, []).append(_schema(needed))
        said, choices = [], 0
        for name, needed in needs.items():
            schema = all_of(needed)
            if schema is True or properties.get(name, True) is False:
                continue
            if name in required:
                options: list[Schema] = [schema]
            else:
                choices += 1
                there = all_of([part_of_object(required=[name]), schema])
                options = [part_of_object(properties={name: False}), there]
            said.append(any_of(context.or_of_other_type("object", within, options)))
        if choices > MAX_NAMES:
            raise Unservable(
                f"{choices} optional properties have dependencies; at most {MAX_NAMES} are allowed"
            )
        return said


def _schema(needed: Any) -> Schema:
    if not isinstance(needed, list):
        return needed
    if not all(isinstance(name, str) for name in needed):
        raise Unservable("dependencies must name properties")
    return part_of_object(required=needed) if needed else True


# `propertyNames`: all properties whose names don't fit are ruled out.

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


# `unevaluatedProperties` and `unevaluatedItems`, where nothing else evaluates any.

_COMBINING = frozenset(
    [
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "conditionals",
        "$ref",
        "dependencies",
        "dependentSchemas",
        "contains",
    ]
)


class Unevaluated(Feature):
    keywords = ("unevaluatedProperties", "unevaluatedItems")

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        said: list[Schema] = []
        for keyword, plain, known in (
            ("unevaluatedProperties", "additionalProperties", ("properties", "patternProperties")),
            ("unevaluatedItems", "items", ("prefixItems",)),
        ):
            rest = node.get(keyword, True)
            if rest is True or rest == {} or plain in node:
                continue
            if _COMBINING & node.keys():
                raise Unservable(f"{keyword} is supported only if nothing else evaluates any")
            parts: dict[str, Any] = {plain: rest}
            for name in known:
                if name in node:
                    each = node[name]
                    parts[name] = (
                        [True] * len(each) if isinstance(each, list) else dict.fromkeys(each, True)
                    )
            said.append(parts)
        return said
