"""Grammars of arguments whose values aren't JSON: in Python's form, or with quotes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from penstock.parsing.format import ValueMarks, Written
from penstock.parsing.nodes import (
    LENGTHS,
    Node,
    bounded_text,
    either,
    schema_node,
    sequence,
    text_node,
    until,
)

MAX_DEPTH = 8
"""Most schemas in one another, references included."""
NOTES = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$id", "$schema"),
    }
)
"""Keywords that limit nothing."""
_DEFINED = frozenset({"$defs", "definitions"})
_OF_STRINGS = frozenset({"minLength", "maxLength", "pattern", "format"})
_OF_NUMBERS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
_OF_OBJECTS = frozenset({"properties", "required", "additionalProperties"})
_KEY = r"[A-Za-z_](\w{0,8}){0,8}"
_ANY_DEPTH = 4
"""Most lists and objects in one another, where values are any."""


def any_arguments(written: Written, marks: ValueMarks) -> Node:
    """Any keys with any values."""
    return _any_members(marks, (written.key, written.key_end), _ANY_DEPTH)


def _any_members(marks: ValueMarks, key: tuple[str, str], depth: int) -> Node:
    begin = sequence(text_node(key[0]), {"type": "regex", "pattern": _KEY}, text_node(key[1]))
    return _separated(marks, sequence(begin, _any_value(marks, depth)))


def _any_value(marks: ValueMarks, depth: int) -> Node:
    ways = [_any_string(marks), schema_node({"type": "number"}), *map(text_node, marks.words)]
    if depth:
        members = _any_members(marks, marks.key, depth - 1)
        ways += [
            sequence(
                text_node("["), _separated(marks, _any_value(marks, depth - 1)), text_node("]")
            ),
            sequence(text_node("{"), members, text_node("}")),
        ]
    return either(*ways)


def _any_string(marks: ValueMarks) -> Node:
    if marks.quote:
        return until(marks.quote, begin=marks.quote)
    return schema_node({"type": "string"})


def _separated(marks: ValueMarks, item: Node) -> Node:
    """Any number of items."""
    tag = {"type": "tag", "begin": "", "content": item, "end": ""}
    return {"type": "tags_with_separator", "tags": [tag], "separator": marks.comma}


def written_arguments(written: Written, marks: ValueMarks, schema: Any) -> Node | None:
    """Grammar of one call's arguments, by their schema; None where it can't be expressed."""
    values = _Values(marks, schema)
    return values.members(schema, (written.key, written.key_end), 0)


class _Values:
    """root: the schema that references are in."""

    def __init__(self, marks: ValueMarks, root: Any) -> None:
        self._marks = marks
        self._root = root

    def members(self, schema: Any, key: tuple[str, str], depth: int) -> Node | None:
        """Grammar of an object's members, in the schema's order, or sorted. key: around each
        key."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return None
        if not schema.keys() - NOTES - _DEFINED - {"type"} <= _OF_OBJECTS:
            return None
        properties, required = schema.get("properties") or {}, schema.get("required") or []
        if schema.get("additionalProperties") not in (None, False) or not isinstance(
            properties, dict
        ):
            return None
        if not all(each in properties for each in required):
            return None
        names = sorted(properties, key=str.lower) if self._marks.sorted_keys else list(properties)
        nodes = []
        for name in names:
            value = self._value(properties[name], depth + 1)
            if value is None:
                return None
            begin = f"{key[0]}{name}{key[1]}"
            nodes.append({"begin": begin, "content": value, "required": name in required})
        return {"type": "members", "members": nodes, "separator": self._marks.comma}

    def _value(self, schema: Any, depth: int) -> Node | None:
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return None
        limits = schema.keys() - NOTES
        if limits == {"$ref"}:
            return self._value(self._referred(schema["$ref"]), depth + 1)
        if limits == {"anyOf"} and isinstance(schema["anyOf"], list):
            return _all(self._value(each, depth + 1) for each in schema["anyOf"])
        if limits <= {"type", "enum", "const"} and limits & {"enum", "const"}:
            values = schema.get("enum", [schema.get("const")])
            if isinstance(values, list) and not any(isinstance(v, (list, dict)) for v in values):
                return _all(map(self._literal, values))
            return None
        types = schema.get("type")
        kinds = types if isinstance(types, list) else [types]
        return _all(self._of_kind(kind, schema, limits - {"type"}, depth) for kind in kinds)

    def _of_kind(self, kind: Any, schema: Any, limits: Iterable[str], depth: int) -> Node | None:
        limits = set(limits)
        match kind:
            case "string" if limits <= _OF_STRINGS:
                return self._string(schema, limits)
            case "integer" | "number" if limits <= _OF_NUMBERS:
                return schema_node({"type": kind, **{name: schema[name] for name in limits}})
            case "boolean" if not limits:
                return either(self._literal(True), self._literal(False))
            case "null" if not limits:
                return self._literal(None)
            case "array" if limits == {"items"}:
                item = self._value(schema["items"], depth + 1)
                if item is None:
                    return None
                return sequence(text_node("["), _separated(self._marks, item), text_node("]"))
            case "object" if limits <= _OF_OBJECTS:
                inner = self.members(schema, self._marks.key, depth + 1)
                return inner and sequence(text_node("{"), inner, text_node("}"))
        return None

    def _string(self, schema: Any, limits: set[str]) -> Node | None:
        if not limits:
            return _any_string(self._marks)
        quote = self._marks.quote
        if quote:
            text = bounded_text(schema, quote) if limits <= LENGTHS else None
            return text and until(quote, begin=quote, text=text)
        return schema_node({"type": "string", **{name: schema[name] for name in limits}})

    def _literal(self, value: Any) -> Node:
        true, false, null = self._marks.words
        if value is True or value is False or value is None:
            return text_node({True: true, False: false, None: null}[value])
        quote = self._marks.quote
        if quote and isinstance(value, str):
            return text_node(f"{quote}{value}{quote}")
        return text_node(json.dumps(value, ensure_ascii=False))

    def _referred(self, reference: Any) -> Any:
        """What a reference within the schema names; None for any other."""
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        found = self._root
        for step in reference[2:].split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        return found


def _all(nodes: Iterable[Node | None]) -> Node | None:
    """Any of them; None where there is none, or one can't be expressed."""
    found = list(nodes)
    given = [node for node in found if node is not None]
    return either(*given) if given and len(given) == len(found) else None
