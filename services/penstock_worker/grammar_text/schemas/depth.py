"""How deep a schema's documents are, and the whitespace that they may be laid out with."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64
"""Levels of a document that may be laid out, where the schema has no bound of its own."""
INDENT = 4
SPACES = 16
"""Whitespace of any kind. Bounded, as all is: small models go on with spaces for ever."""


def whitespace(schema: Any) -> str:
    """A regular expression for what may stand between the parts of a document: a little of
    anything, or a new line and the indentation of the deepest level."""
    levels = depth_of(schema)
    some = rf"[\x20\x0A\x0D\x09]{{0,{SPACES}}}"
    if INDENT * levels < SPACES:
        return some
    return rf"{some}|\x0D?\x0A(?:\x20{{0,{INDENT * levels}}}|\x09{{0,{levels}}})"


def depth_of(schema: Any) -> int:
    """Levels of arrays and objects, at most MAX_DEPTH."""
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    return _Depth(definitions).of(schema)


class _Depth:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._known: dict[str, int] = {}

    def of(self, schema: Any) -> int:
        if schema is False:
            return 0
        if not isinstance(schema, dict):
            return MAX_DEPTH
        several = [schema[name] for name in ("anyOf", "oneOf") if schema.get(name)]
        bounds = [max(map(self.of, options)) for options in several]
        bounds += [self.of(each) for each in schema.get("allOf", ())]
        if "$ref" in schema:
            bounds.append(self._reference(schema["$ref"]))
        bounds.append(self._own(schema))
        return min(bounds)

    def _own(self, schema: dict[str, Any]) -> int:
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            return max(map(_value_depth, values), default=0)
        types = schema.get("type", ("array", "object"))
        types = types if isinstance(types, list | tuple) else [types]
        deepest = 0
        if "object" in types:
            inner = [*schema.get("properties", {}).values()]
            inner += schema.get("patternProperties", {}).values()
            deepest = 1 + self._deepest([*inner, schema.get("additionalProperties", True)])
        if "array" in types:
            inner = [*schema.get("prefixItems", ()), schema.get("items", True)]
            deepest = max(deepest, 1 + self._deepest(inner))
        return min(deepest, MAX_DEPTH)

    def _deepest(self, schemas: list[Any]) -> int:
        return max(map(self.of, schemas))

    def _reference(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = MAX_DEPTH  # What it is inside of itself.
            target = self._definitions.get(name.rpartition("/")[2], True)
            self._known[name] = self.of(target)
        return self._known[name]


def _value_depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_value_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_value_depth, value), default=0)
    return 0
