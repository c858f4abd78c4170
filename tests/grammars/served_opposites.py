"""Schemas with opposites and circles of references, with documents that fit and don't."""

from __future__ import annotations

from typing import Any

from tests.grammars.schema_parts import ABC, OPEN, kind_is

OPPOSITES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "one of two, of which one says that not exactly one of others holds": (
        {
            "type": "object",
            "oneOf": [
                {"not": {"required": ["a"]}},
                {"not": {"oneOf": [{"required": ["d"]}, {"required": ["b"]}]}},
            ],
        },
        [{"d": 1}],
        [{}, {"b": 1, "d": 1}, {"a": 1, "b": 1}],
    ),
    "a constant tells apart what is served in part": (
        {
            "oneOf": [
                {
                    **kind_is("a"),
                    "type": "object",
                    "allOf": [{"properties": {"x": {"not": {"pattern": "a"}}}}],
                },
                {"type": "object", **kind_is("b")},
            ]
        },
        [{"kind": "a", "x": "b"}, {"kind": "b"}],
        [{"kind": "a", "x": "a"}, {"kind": "c"}],
    ),
    "circles with something implied beside them": (
        {
            "type": "object",
            "properties": {
                "next": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/end"}], "type": "object"},
                "other": {"allOf": [{"$ref": "#"}, {"$ref": "#/$defs/any"}, {}]},
            },
            "additionalProperties": False,
            "$defs": {
                "end": {"type": "object", "required": ["end"]},
                "any": {"type": "object"},
            },
        },
        [{}, {"next": {"end": 1}}, {"next": {"other": {}}}, {"other": {"next": {}}}],
        [{"next": 1}, {"other": {"x": 1}}, {"other": {"next": []}}],
    ),
    "not a pattern": (
        {"type": "object", "properties": {"a": {"not": {"pattern": "^x[0-9]+$"}}}},
        [{"a": "x"}, {"a": "x1y"}, {"a": ""}, {}],
        [{"a": "x1"}, {"a": "x123"}, {"a": 1}],
    ),
    "a pattern but not another": (
        {"type": "string", "pattern": "^[a-c]*$", "not": {"pattern": "ab"}},
        ["", "ba", "aa", "cacb"],
        ["ab", "cab", "abc", "x"],
    ),
    "names that have no such pattern": (
        {
            "type": "object",
            "propertyNames": {"not": {"pattern": "a"}},
            "additionalProperties": {"type": "integer"},
        },
        [{}, {"b": 1}, {"": 1}],
        [{"a": 1}, {"bab": 1}],
    ),
    "not an integer": ({"not": {"type": "integer"}}, ["x", [], {}, None], [1, -2]),
    "not one of two": (
        {"not": {"anyOf": [{"pattern": "x"}, {"type": "number", "multipleOf": 3}]}},
        ["y", "", "zz"],
        ["x", 3, "axb", []],
    ),
    "not an object that has a property without a pattern": (
        {
            "not": {
                "type": "object",
                "required": ["a"],
                "properties": {"a": {"type": "string", "not": {"pattern": "x"}}},
            }
        },
        [1, [], {"b": 1}],
        [{"a": "b"}, {"a": ""}],
    ),
    "one of two that a pattern tells apart": (
        {"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "^b"}]},
        ["a", "xa", "b", "bx"],
        ["ba", "x", "bxa"],
    ),
    "contains, in an array of any length": (
        {"type": "array", "contains": {"const": 1}},
        [[1], [2, 1], [1, *range(40)], [*[2] * 15, 1]],
        [[], [2], [2, 3, "1"]],
    ),
    "multiples of one of two": (
        {"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]},
        [2, 3, 4, -3, -2],
        [6, 0, 1, "x"],
    ),
    "no multiples, between bounds": (
        {"type": "number", "minimum": 100, "not": {"multipleOf": 0.1}},
        [100.05, 100.25],
        [100, 100.5, 0.05],
    ),
    "a number that is no integer": (
        {"type": "number", "not": {"type": "integer"}},
        [0.5, -1.25],
        [1, 2.0, "x"],
    ),
    "if on items": (
        {"if": {"items": {"type": "string"}}, "then": {"minItems": 1}},
        [["x"], [1], ["x", 1], 1, "x"],
        [[]],
    ),
    "not only such items": (
        {"type": "array", "not": {"items": {"type": "string"}}},
        [[1], ["a", None], ["a"] * 7 + [1]],
        [[], ["a"], ["a", "b"]],
    ),
    "one of two, of items that have nothing in common": (
        {
            "oneOf": [
                {"type": "array", "items": {"type": "number"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
            ]
        },
        [[1], [[1, 2], []], [[]]],
        [[], [1, []]],
    ),
    "not this array, and not that": (
        {"type": "array", "not": {"enum": [["a", 1], []]}},
        [["a"], ["a", 2], ["b", 1], ["a", 1, 2]],
        [["a", 1], []],
    ),
    "not this object": (
        {"type": "object", "not": {"const": {"a": 1, "b": {"c": 2}}}},
        [{}, {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": {"c": 2}, "d": 1}, {"a": 1, "b": {}}],
        [{"a": 1, "b": {"c": 2}}],
    ),
    "a property that isn't listed": (
        {"type": "object", "not": {"properties": {"a": {}}, "additionalProperties": False}},
        [{"x": 1}, {"other": 1, "x": 2}],
        [{}, {"a": 1}],
    ),
    "a property that another closed object hasn't got": (
        {
            "oneOf": [
                {"properties": {"a": {}, "b": {}}, "additionalProperties": False},
                {"properties": {"a": {}, "c": {}}, "additionalProperties": False},
            ],
            "type": "object",
        },
        [{"b": 1}, {"a": 1, "b": 2}, {"c": 3}],
        [{}, {"a": 1}, {"b": 1, "c": 1}],
    ),
    "not all that a pattern is about": (
        {
            "type": "object",
            "properties": {"x-a": {}, "b": {}},
            "not": {"patternProperties": {"^x-": {"type": "string"}}},
        },
        [{"x-a": 1}, {"x-a": 1, "b": 2}],
        [{}, {"x-a": "a"}, {"b": 1}],
    ),
    "more properties": (
        ABC | {"not": {"maxProperties": 1}},
        [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}],
        [{}, {"a": 1}],
    ),
    "the opposite of what was said in part": (
        {
            "$defs": {"some": {"not": {"patternProperties": {"^x": {"type": "integer"}}}}},
            "type": "object",
            "not": {"$ref": "#/$defs/some"},
            "patternProperties": {"^x": {}},
            "additionalProperties": False,
        },
        [{}, {"x": 1, "xy": 2}],
        [{"x": "a"}, {"b": 1}],
    ),
    "a circle with more beside each reference": (
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/named"}},
                },
                "named": {"allOf": [{"$ref": "#/$defs/node"}, {"required": ["name"]}]},
            },
        },
        [{}, {"next": {"name": "a"}}, {"name": "a", "next": {"name": "b", "next": {"name": "c"}}}],
        [{"next": {}}, {"next": {"name": "a", "next": {}}}],
    ),
    "a circle through what a pattern says of a listed property": (
        {
            "$ref": "#/$defs/tree",
            "$defs": {
                "tree": {
                    "type": "object",
                    "properties": {"top": {"$ref": "#/$defs/tree", "required": ["leaf"]}},
                    "patternProperties": {".*": {"$ref": "#/$defs/tree"}},
                    "additionalProperties": False,
                }
            },
        },
        [{}, {"top": {"leaf": {}}}, {"a": {"top": {"leaf": {}}, "b": {}}}],
        [{"top": {}}, {"a": 1}, {"a": {"top": {}}}],
    ),
    "a circle of alternatives": (
        {
            "$ref": "#/$defs/any",
            "$defs": {
                "any": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/map"}]},
                "map": {
                    "type": "object",
                    "additionalProperties": {"allOf": [{"$ref": "#/$defs/any"}, {"minLength": 2}]},
                },
            },
        },
        ["", {}, {"a": "xy"}, {"a": {"b": "xy"}}],
        [1, {"a": "x"}, {"a": {"b": "x"}}],
    ),
    "an optional property that can't be": (
        OPEN | {"properties": {"a": False, "b": {}}},
        [{"b": 1}, {"x": 1}],
        [{"a": 1}],
    ),
}
