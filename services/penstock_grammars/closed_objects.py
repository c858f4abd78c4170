"""Objects of a JSON schema that say which properties they have get no others.

To JSON Schema an object without `additionalProperties` is open; a model may then go on with
properties of its own until its tokens are used up.  A schema that lists properties for a model to
fill in means only those, and other servers close such objects too.  What a closed schema admits,
the schema as it was written admits as well: where that could be otherwise, it is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock_grammars.schemas.keywords import changed, inner
from penstock_grammars.schemas.rewriter import EXTENDED

_OPPOSITE = frozenset(
    {"oneOf", "not", "if", "dependentSchemas", "unevaluatedProperties", "$dynamicRef"}
)
"""Keywords with one of which, anywhere, less may be more: the opposite of an object may be
wanted."""


def closed(schema: Any) -> Any:
    """The schema, or a copy of it whose objects are closed."""
    if not isinstance(schema, dict):
        return schema
    extended = schema.get(EXTENDED, ())
    schema = {name: each for name, each in schema.items() if name != EXTENDED}
    nodes = list(_nodes(schema))
    if any(_OPPOSITE & node.keys() for node in nodes):
        return schema
    definitions = schema.get("$defs", {})
    try:
        parts = _parts(nodes, definitions) | _extended(extended, definitions)
        closable = {id(n) for n in nodes if id(n) not in parts and _may_be_closed(n, definitions)}
    except KeyError:  # A reference that leads elsewhere.
        return schema
    return _closed(schema, closable)


def _parts(nodes: list[dict[str, Any]], definitions: dict[str, Any]) -> set[int]:
    """Ids of the schemas that say a part only of what is said of a value."""
    found: set[int] = set()
    for node in nodes:
        parts = list(_parts_of(node, definitions))
        found |= set(map(id, parts))
        stack = [each for part in (node, *parts) for each in _shared(part, parts)]
        while stack:  # What several speak of, and all that is in it.
            each = stack.pop()
            if isinstance(each, dict) and id(each) not in found:
                found.add(id(each))
                stack += [inside for _, inside in inner(each)]
                stack += _referred(each, definitions)
    return found


def _extended(references: Iterable[str], definitions: dict[str, Any]) -> set[int]:
    """Ids of the schemas that say what an object is that has more properties elsewhere."""
    found: set[int] = set()
    for reference in references:
        node = definitions[reference.removeprefix("#/$defs/")]
        if isinstance(node, dict):
            found |= {id(node), *map(id, _in_place(node, definitions))}
    return found


def _shared(node: dict[str, Any], parts: list[dict[str, Any]]) -> Iterator[Any]:
    """The schemas for what is in a value, where a part has its own for that."""
    named = {name for part in parts for name, each in _properties(part).items() if _says(each)}
    others = any(_says(part.get(name)) for part in parts for name in _OTHERS)
    for name, each in _properties(node).items():
        if others or name in named:
            yield each
    if others or named:
        for name in _OTHERS:
            value = node.get(name)
            if isinstance(value, dict) and name == "patternProperties":
                yield from value.values()
            elif isinstance(value, list):
                yield from value
            else:
                yield value


_OTHERS = ("patternProperties", "additionalProperties", "items", "prefixItems")


def _says(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _properties(node: dict[str, Any]) -> dict[str, Any]:
    properties = node.get("properties")
    return properties if isinstance(properties, dict) else {}


def _referred(node: dict[str, Any], definitions: dict[str, Any]) -> list[Any]:
    if "$ref" not in node:
        return []
    return [definitions[str(node["$ref"]).removeprefix("#/$defs/")]]


def _closed(schema: Any, closable: set[int]) -> Any:
    # `changed` passes copies on, so what is to be closed is marked first.
    if not closable:
        return schema
    marked = _marked(schema, closable)
    return changed(marked, _close)


_MARK = "x-closed"


def _marked(schema: Any, closable: set[int]) -> Any:
    if isinstance(schema, list):
        return [_marked(each, closable) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _marked(each, closable) for name, each in schema.items()}
    return made | {_MARK: True} if id(schema) in closable else made


def _close(node: dict[str, Any]) -> dict[str, Any]:
    if node.pop(_MARK, False):
        node["additionalProperties"] = False
    return node


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a schema that is an object."""
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack += [each for _, each in inner(node)]


def _parts_of(node: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas, at any depth, that say more of the same object as the node does; none where the
    node is but one or several others.  Raises KeyError for an unknown reference."""
    alone = not ("properties" in node or "required" in node or "allOf" in node)
    if alone and len(node.keys() & {"anyOf", "$ref"}) < 2:
        return
    yield from _in_place(node, definitions)


def _in_place(node: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    seen: set[int] = {id(node)}
    stack = [node]
    while stack:
        each = stack.pop()
        found = [*each.get("allOf", ()), *each.get("anyOf", ())]
        found += _referred(each, definitions)
        for part in found:
            if isinstance(part, dict) and id(part) not in seen:
                seen.add(id(part))
                stack.append(part)
                yield part


def _may_be_closed(node: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """Whether it lists properties, nothing speaks of others, and none are needed."""
    properties = node.get("properties")
    if not isinstance(properties, dict):
        return False
    if properties and all(each is False for each in properties.values()):
        return False  # It says what is not to be there.
    if "additionalProperties" in node or "patternProperties" in node:
        return False
    least = node.get("minProperties", 0)
    if not isinstance(least, int) or least > len(properties):
        return False
    parts = [node, *_in_place(node, definitions)]
    return all(_names(part) <= properties.keys() for part in parts)


def _names(part: dict[str, Any]) -> set[Any]:
    """The properties that it speaks of; with None among them where it isn't said which."""
    properties, required = part.get("properties", {}), part.get("required", [])
    names: set[Any] = {*properties} if isinstance(properties, dict) else {None}
    names |= set(required) if isinstance(required, list) else {None}
    if "patternProperties" in part or not isinstance(part.get("additionalProperties", True), bool):
        names.add(None)
    return names
