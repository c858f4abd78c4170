"""Schemas that choose among branches, properties and names, with documents that fit and don't."""

from __future__ import annotations

from typing import Any

from tests.grammars.schema_parts import ABC, CIRCLE, KINDS, OPEN, SQUARE, kind_is

CHOICES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "an unknown format is an annotation": (
        {"type": "string", "format": "html-selector"},
        ["", "p > a"],
        [1],
    ),
    "a discriminating constant": (
        {"oneOf": [CIRCLE, SQUARE]},
        [{"kind": "circle", "radius": 1}, {"kind": "square", "side": 2}],
        [{"kind": "circle", "side": 1}, {"kind": "triangle"}],
    ),
    "the same behind references": (
        {
            "oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/s"}],
            "$defs": {"c": CIRCLE, "s": SQUARE},
        },
        [{"kind": "circle", "radius": 1}, {"kind": "square", "side": 2}],
        [{"kind": "circle", "side": 1}],
    ),
    "disjoint types": (
        {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        ["x", ["x"]],
        [1, [1]],
    ),
    "disjoint ranges": (
        {"type": "integer", "oneOf": [{"maximum": 2}, {"minimum": 5}]},
        [1, 2, 5],
        [3, 4],
    ),
    "disjoint patterns": (
        {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]},
        ["ax", "b"],
        ["c"],
    ),
    "values of which some are in both": (
        {"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]},
        ["a", "c"],
        ["b"],
    ),
    "a branch that another contains": (
        {"oneOf": [{"type": "string"}, {"enum": ["a", 1]}, {"type": "null"}]},
        ["b", 1, None],
        ["a", 2],
    ),
    "one of two properties": (
        ABC | {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1, "c": 2}],
        [{"a": 1, "b": 1}, {"c": 1}],
    ),
    "one of two properties, of whatever": (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}, {}, 1, None, []],
    ),
    "one of three": (
        ABC | {"oneOf": [{"required": [name]} for name in "abc"]},
        [{"a": 1}, {"b": 1}, {"c": 1}],
        [{"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}, {}],
    ),
    "not a type": ({"not": {"type": ["string", "array"]}}, [1, None, {}, True], ["", []]),
    "not some values": (
        {"type": ["string", "number", "boolean"], "not": {"enum": ["a", "ab", "", 3, -1, True]}},
        ["b", "aa", "abc", "\n", 2, 3.5, -7, False],
        ["a", "ab", "", 3, -1, True, 3.0],
    ),
    "not a long value": (
        {"type": "string", "not": {"enum": ["a" * 120, '日本 🙂\\"', "x"]}},
        ["a" * 119, "a" * 121, "a" * 119 + "b", "日本", "日本 🙂", "", "xx", "\n"],
        ["a" * 120, '日本 🙂\\"', "x"],
    ),
    "beside a reference, as draft 7 has it": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"n": {"type": "integer"}},
            "oneOf": [{"$ref": "#/definitions/n", "maximum": 3}, {"type": "null"}],
        },
        [1, 9, None],
        ["a"],
    ),
    "not both properties": (
        ABC | {"not": {"required": ["a", "b"]}},
        [{"a": 1, "c": 1}, {"b": 1}, {}],
        [{"a": 1, "b": 1}],
    ),
    "not a property's value": (
        KINDS | {"not": {"properties": {"kind": {"const": "x"}}}},
        [{"kind": "y"}],
        [{"kind": "x"}],
    ),
    "neither": (
        ABC | {"not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}},
        [{"c": 1}, {}],
        [{"a": 1}, {"b": 1, "c": 1}],
    ),
    "not not": ({"not": {"not": {"type": "string", "pattern": "^a"}}}, ["ab"], ["b", 1]),
    "if on a constant": (
        KINDS | {"if": kind_is("x"), "then": {"required": ["b"]}, "else": {"required": ["c"]}},
        [{"kind": "x", "b": 1}, {"kind": "y", "c": 1}, {"kind": "x", "b": 1, "c": 1}],
        [{"kind": "x", "c": 1}, {"kind": "z", "b": 1}],
    ),
    "several ifs": (
        KINDS
        | {
            "allOf": [
                {"if": kind_is("x"), "then": {"required": ["b"]}},
                {"if": kind_is("y"), "then": {"required": ["c"]}},
            ]
        },
        [{"kind": "x", "b": 1}, {"kind": "y", "c": 1}, {"kind": "z"}],
        [{"kind": "x"}, {"kind": "y", "b": 1}],
    ),
    "ifs on a property that may be absent": (
        OPEN
        | {
            "properties": {"kind": {"type": "string"}, "b": {}, "c": {}},
            "allOf": [
                {"if": {"properties": {"kind": {"const": "x"}}}, "then": {"required": ["b"]}},
                {"if": {"properties": {"kind": {"const": "y"}}}, "then": {"required": ["c"]}},
            ],
        },
        [{"kind": "x", "b": 1}, {"kind": "y", "c": 1}, {"kind": "z"}, {"b": 1, "c": 1}],
        [{"kind": "x"}, {"kind": "y", "b": 1}, {}, {"b": 1}],
    ),
    "ifs that may hold together": (
        ABC
        | {
            "allOf": [
                {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
                {"if": {"required": ["b"]}, "then": {"required": ["c"]}},
            ]
        },
        [{}, {"c": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
    ),
    "true is not 1": (
        {"oneOf": [{"enum": [1, "a"]}, {"enum": [True, "a"]}]},
        [1, True],
        ["a", False, 0],
    ),
    "a property that needs another": (
        ABC | {"dependentRequired": {"a": ["b"], "b": ["c"]}},
        [{"a": 1, "b": 1, "c": 1}, {"b": 1, "c": 1}, {"c": 1}, {}],
        [{"a": 1}, {"a": 1, "b": 1}],
    ),
    "a property that needs a schema": (
        ABC
        | {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "dependencies": {"a": {"properties": {"b": {"type": "null"}}}, "c": ["a"]},
        },
        [{"a": 1, "b": None}, {"a": 1}, {"b": 5}],
        [{"a": 1, "b": 5}, {"c": 1}],
    ),
    "names by pattern": (
        {"type": "object", "propertyNames": {"pattern": "^x-"}, "additionalProperties": True},
        [{"x-a": 1}, {}],
        [{"a": 1}],
    ),
    "names from a list": (
        {
            "type": "object",
            "propertyNames": {"enum": ["a", "b"]},
            "additionalProperties": {"type": "integer"},
        },
        [{"a": 1}, {"b": 2}, {}],
        [{"c": 1}, {"a": "x"}],
    ),
    "short names": (
        OPEN | {"propertyNames": {"maxLength": 2}},
        [{"ab": 1, "": 2}],
        [{"abc": 1}],
    ),
    "at least two of three": (
        ABC | {"minProperties": 2, "additionalProperties": False},
        [{"a": 1, "b": 1}, {"a": 1, "c": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
        [{"a": 1}, {}],
    ),
    "at most one of three": (
        ABC | {"maxProperties": 1, "additionalProperties": False},
        [{"a": 1}, {"c": 1}, {}],
        [{"a": 1, "b": 1}],
    ),
    "at least one, listed or not": (ABC | {"minProperties": 1}, [{"a": 1}, {"x": 1}], [{}]),
    "at most two, listed or not": (
        ABC | {"maxProperties": 2},
        [{}, {"a": 1, "x": 1}, {"a": 1, "b": 1}, {"x": 1, "y": 1}],
        [{"a": 1, "b": 1, "x": 1}, {"x": 1, "y": 1, "z": 1}],
    ),
    "contains": (
        {"type": "array", "maxItems": 3, "contains": {"const": "x"}},
        [["x"], [1, "x"], [1, 2, "x"], ["x", "x"]],
        [[], [1], [1, 2, 3, "x"]],
    ),
    "unique values": (
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        [[], ["b"], ["c", "a"], ["b", "a", "c"]],
        [["a", "a"], ["a", "b", "a"]],
    ),
    "nothing unevaluated": (
        {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
        [{"a": 1}, {}],
        [{"b": 1}],
    ),
    "bounds that exclude, as in draft 4": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "integer",
            "minimum": 3,
            "exclusiveMinimum": True,
        },
        [4],
        [3],
    ),
    "references by pointer, anchor and id": (
        {
            "$id": "http://example.com/root.json",
            "type": "array",
            "prefixItems": [
                {"$ref": "#/$defs/a~1b"},
                {"$ref": "#word"},
                {"$ref": "root.json#/$defs/c%25"},
                {"$ref": "other.json"},
            ],
            "minItems": 4,
            "maxItems": 4,
            "$defs": {
                "a/b": {"const": 1},
                "w": {"$anchor": "word", "const": 2},
                "c%": {"const": 3},
                "o": {"$id": "other.json", "const": 4},
            },
        },
        [[1, 2, 3, 4]],
        [[1, 2, 4, 3]],
    ),
    "only a property that can't be": (
        {"type": "object", "properties": {"a": {"not": {}}}},
        [{"b": 1}, {}],
        [{"a": 1}],
    ),
    "an id beside a reference, as draft 7 has it": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$id": "http://example.com/base/",
            "definitions": {
                "near": {"$id": "name.json", "type": "string"},
                "far": {"$id": "http://example.com/other/name.json", "type": "number"},
            },
            "items": {"$id": "http://example.com/other/", "$ref": "name.json"},
            "type": "array",
        },
        [["a"]],
        [[1]],
    ),
}
