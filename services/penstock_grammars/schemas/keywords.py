"""The keywords of JSON schema: which draft knows which, and where other schemas are inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = dict[str, Any] | bool

TYPES = ("null", "boolean", "number", "string", "array", "object")
"""The types of documents; an integer is a number."""

MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
LISTS = ("prefixItems", "anyOf", "allOf", "oneOf")
SINGLE = (
    *("items", "additionalItems", "contains", "unevaluatedItems"),
    *("additionalProperties", "propertyNames", "unevaluatedProperties"),
    *("not", "if", "then", "else"),
)

_SINCE = {
    **dict.fromkeys(("contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 8),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "$recursiveRef"), 8),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), 9),
}
"""The draft since which a keyword is known; 8 is 2019-09, 9 is 2020-12."""
_ALWAYS = frozenset(
    (
        *("$ref", "type", "const", "enum", "anyOf", "allOf", "oneOf", "not", "dependencies"),
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("minProperties", "maxProperties"),
        *("items", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
"""`const` came with draft 6; a schema of an older draft that has it is meant to use it."""
ABOUT = {
    **dict.fromkeys(("properties", "required", "additionalProperties"), "object"),
    **dict.fromkeys(("patternProperties", "minProperties", "maxProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), "string"),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), "number"),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), "number"),
}
"""The type that a keyword speaks of. To documents of other types it says nothing."""
NARROWED = "x-narrowed"
"""Marks a rewritten schema that admits only a part of what it should: its opposite would admit too
much, and what it has in common with another says nothing.  Its value says why."""
OPPOSITE = "x-opposite"
"""The schema whose opposite this is a part of; a sibling of NARROWED."""
UNIQUE = "x-unique"
"""Marks an array no two of whose items may be the same, which only who follows an output can see.
Its value: the items that there may be, as texts; null where they can't be listed."""
_DRAFTS = {"04": 4, "06": 6, "07": 7, "2019-09": 8, "2020-12": 9}
NEWEST = 9


def draft_of(schema: dict[str, Any]) -> int:
    """Returns the draft that `$schema` names; the newest where it names none."""
    name = schema.get("$schema")
    if not isinstance(name, str):
        return NEWEST
    for word, draft in _DRAFTS.items():
        if name.rstrip("#") in (
            f"http://json-schema.org/draft-{word}/schema",
            f"https://json-schema.org/draft/{word}/schema",
        ):
            return draft
    return NEWEST


def is_constraint(keyword: str, draft: int) -> bool:
    """Whether a draft gives it a meaning for documents. To other drafts it is an annotation."""
    return keyword in _ALWAYS or draft >= _SINCE.get(keyword, NEWEST + 1)


def inner(node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(place within the node, schema) of all schemas directly inside of one."""
    for name in (*MAPS, "dependencies"):
        if isinstance(node.get(name), dict):
            for key, value in node[name].items():
                yield f"{name}/{key}", value
    for name in (*LISTS, *SINGLE):
        value = node.get(name)
        if isinstance(value, list):
            for at, each in enumerate(value):
                yield f"{name}/{at}", each
        elif name in node:
            yield name, value


def together(node: dict[str, Any], definitions: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The node, and all schemas that hold wherever it does.

    definitions: by name, what references refer to.
    """
    seen: set[int] = set()
    stack: list[Any] = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, dict) and id(each) not in seen:
            seen.add(id(each))
            yield each
            stack += each.get("allOf", ())
            if "$ref" in each:
                stack.append(definitions.get(each["$ref"].rpartition("/")[2]))


def changed(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """The schema with each schema in it replaced, inner ones first."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in MAPS:
        if name in made:
            made[name] = {key: changed(value, change) for key, value in made[name].items()}
    for name in LISTS:
        if name in made:
            made[name] = [changed(value, change) for value in made[name]]
    for name in SINGLE:
        if name in made:
            made[name] = changed(made[name], change)
    return change(made)


def is_narrowed(schema: Any, definitions: Mapping[str, Any]) -> bool:
    """Whether a schema in it, or in what it refers to, admits less than it should."""
    seen: set[str] = set()
    stack = [schema]
    while stack:
        node = stack.pop()
        if not isinstance(node, dict):
            continue
        if NARROWED in node:
            return True
        stack += [each for _, each in inner(node)]
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            stack.append(definitions.get(reference))
    return False


class Unservable(Exception):
    """A part of a schema can't be served exactly. The message is for the client, without the
    place."""
