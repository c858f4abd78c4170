"""Objects of a JSON schema that say which properties they have get no others.

To JSON Schema an object without `additionalProperties` is open; a model may then go on with
properties of its own until its tokens are used up.  Whoever lists properties for a model to fill in
means those, and other servers close such objects too.  What a closed schema admits, the schema as
it was written admits as well: where that could be otherwise, it is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_COMBINING = frozenset(
    {"allOf", "oneOf", "not", "if", "dependentSchemas", "unevaluatedProperties", "$dynamicRef"}
)
"""With one of these anywhere, an object may be one part of a larger one, or its opposite wanted."""

_ALTERNATIVES = frozenset({"anyOf", "$ref"})
_MAPS = ("properties", "$defs", "definitions", "patternProperties")
_LISTS = ("prefixItems", "anyOf")
_SINGLE = ("items", "additionalItems", "additionalProperties", "contains", "propertyNames")


def closed(schema: Any) -> Any:
    """The schema, or a copy of it whose objects are closed."""
    nodes = list(_nodes(schema))
    if any(_combines(node) for node in nodes):
        return schema
    return _copy(schema)


def _combines(node: dict[str, Any]) -> bool:
    if _COMBINING & node.keys():
        return True
    return bool(_ALTERNATIVES & node.keys()) and ("properties" in node or "required" in node)


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a schema that is an object."""
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack += _inner(node)


def _inner(node: dict[str, Any]) -> Iterator[Any]:
    for name in _MAPS:
        if isinstance(node.get(name), dict):
            yield from node[name].values()
    for name in _LISTS:
        if isinstance(node.get(name), list):
            yield from node[name]
    for name in _SINGLE:
        if isinstance(node.get(name), list):
            yield from node[name]
        elif name in node:
            yield node[name]


def _copy(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in _MAPS:
        if isinstance(made.get(name), dict):
            made[name] = {key: _copy(value) for key, value in made[name].items()}
    for name in (*_LISTS, *_SINGLE):
        if isinstance(made.get(name), list):
            made[name] = [_copy(value) for value in made[name]]
        elif name in made:
            made[name] = _copy(made[name])
    if _may_be_closed(schema):
        made["additionalProperties"] = False
    return made


def _may_be_closed(node: dict[str, Any]) -> bool:
    """Whether it lists properties, doesn't speak of others, and needs none."""
    properties, required = node.get("properties"), node.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    if "additionalProperties" in node or "patternProperties" in node:
        return False
    least = node.get("minProperties", 0)
    enough = isinstance(least, int) and least <= len(properties)
    return enough and all(isinstance(name, str) and name in properties for name in required)
