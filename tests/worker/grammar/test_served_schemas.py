"""Which documents each keyword leaves, for schemas by hand: jsonschema says so too."""

from __future__ import annotations

import itertools
import re
from typing import Any

import jsonschema
import pytest

from penstock_worker.grammar_text.errors import GrammarError
from tests.worker.grammar.byte_matcher import Served

OPEN = {"type": "object", "additionalProperties": True}
ABC = OPEN | {"properties": {"a": {"type": "integer"}, "b": {}, "c": {}}}
CIRCLE = {
    "type": "object",
    "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
    "required": ["kind", "radius"],
}
SQUARE = {
    "type": "object",
    "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
    "required": ["kind", "side"],
}
KINDS = OPEN | {
    "properties": {"kind": {"enum": ["x", "y", "z"]}, "b": {}, "c": {}},
    "required": ["kind"],
}


def kind_is(name: str) -> dict[str, Any]:
    return {"properties": {"kind": {"const": name}}, "required": ["kind"]}


NO_A: dict[str, Any] = {"properties": {"x": {"not": {"pattern": "a"}}}}
SERVED: dict[str, tuple[Any, list[Any], list[Any]]] = {
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


@pytest.mark.parametrize("name", SERVED)
def test_what_a_keyword_leaves(name: str) -> None:
    schema, fit, unfit = SERVED[name]
    judge = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    served = Served(schema)
    for document in fit:
        assert judge.is_valid(document), document
        assert served.admits(document), document
    for document in unfit:
        assert not judge.is_valid(document), document
        assert not served.admits(document), document


@pytest.mark.parametrize(
    ("schema", "fit", "unfit"),
    [
        ({"type": "string", "not": {"format": "ipv4"}}, ["x", "::1"], ["1.2.3.4"]),
        (
            {"oneOf": [{"type": "string", "format": name} for name in ("hostname", "ipv4")]},
            ["example.org", "localhost"],
            ["1.2.3.4", "a b"],
        ),
        ({"oneOf": [{"type": "string", "format": "ipv6"}, {"type": "string"}]}, ["x"], ["::1"]),
        ({"type": "string", "not": {"format": "date"}}, ["soon"], ["2026-01-02"]),
        ({"type": "string", "not": {"format": "email"}}, ["a"], ["a@b.org"]),
        ({"type": "string", "not": {"format": "duration"}}, ["1 day"], ["P1D"]),
    ],
)
def test_what_fails_a_format(schema: Any, fit: list[str], unfit: list[str]) -> None:
    served = Served(schema)
    known = jsonschema.Draft202012Validator.FORMAT_CHECKER
    checker = jsonschema.Draft202012Validator(schema, format_checker=known)
    for text in fit:
        if "duration" in known.checkers or "duration" not in str(schema):
            assert checker.is_valid(text), text
        assert served.admits(text), text
    for text in unfit:
        assert not served.admits(text), text


REFUSED = {
    "no output can match this schema": False,
    "at #/$defs/a: this if is not supported": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"if": {"pattern": "a{40}"}, "then": {"minLength": 1}}},
    },
    "at /allOf/1/items: this not": {
        "allOf": [
            {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
            {"items": {"type": "string", "not": {"pattern": "a{40}"}}},
        ]
    },
    "branches 0 and 1 of oneOf may both match, and what fails a pattern": {
        "oneOf": [{"type": "string", "pattern": "a{40}"}, {"type": "string", "pattern": "b{40}"}]
    },
    "a schema that can't be said in full can't be excluded": {
        "type": "string",
        "not": {"pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},
    },
    "no output can match this schema: it is false, or equivalent to false": {
        "oneOf": [{"type": "string"}, {"type": "string"}]
    },
    "at most 8 are allowed": {
        "type": "object",
        "dependentRequired": {f"a{at}": ["b"] for at in range(9)},
    },
    "propertyNames with both a pattern and a length": {
        "type": "object",
        "propertyNames": {"pattern": "a", "maxLength": 3},
    },
    "too many ways to choose among 30": {
        "type": "object",
        "properties": {f"a{at}": {} for at in range(30)},
        "minProperties": 3,
    },
    "names that the schema doesn't list might repeat: at most 1 can be asked for": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "minProperties": 2,
    },
    "minContains over 1 and maxContains are not supported": {
        "type": "array",
        "contains": {"const": 1},
        "minContains": 2,
    },
    "uniqueItems is not supported for items that are arrays or objects": {
        "type": "array",
        "items": {"type": "object"},
        "uniqueItems": True,
    },
    "at /items: required must be an array": {"type": "array", "items": {"required": True}},
    "a schema must be an object or a boolean": {"properties": {"a": 5}},
    "$ref is '#/nope', which the schema doesn't contain": {"$ref": "#/nope"},
    "refers to itself": {"not": {"$ref": "#"}},
    "unevaluatedProperties is supported only if nothing else": {
        "if": {"required": ["a"]},
        "then": {"properties": {"a": {}}},
        "unevaluatedProperties": False,
    },
    "$dynamicRef is not supported": {"$dynamicRef": "#x"},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_says_where_and_why(words: str) -> None:
    with pytest.raises(GrammarError) as refused:
        Served(REFUSED[words])
    assert words in str(refused.value)
    assert "coerce_one_of" not in str(refused.value)


def test_many_conditions_on_one_property_are_one_choice() -> None:
    """Each by itself would double the ways to go on."""
    kinds = [f"k{at}" for at in range(40)]
    served = Served(
        OPEN
        | {
            "properties": {"kind": {"enum": kinds}} | {f"p{at}": {} for at in range(40)},
            "required": ["kind"],
            "allOf": [
                {"if": kind_is(kind), "then": {"required": [f"p{at}"]}}
                for at, kind in enumerate(kinds)
            ],
        }
    )
    assert served.admits({"kind": "k17", "p17": 1})
    assert not served.admits({"kind": "k17", "p18": 1})


def test_many_branches_are_told_apart() -> None:
    branches = [
        {"properties": {"kind": {"const": at}, f"p{at}": {}}, "required": ["kind", f"p{at}"]}
        for at in range(250)
    ]
    served = Served({"oneOf": branches})
    assert served.admits({"kind": 17, "p17": 1})
    assert not served.admits({"kind": 17, "p18": 1})


def test_optional_properties_are_counted_wherever_they_are_listed() -> None:
    """The library would give up in the middle of an output."""
    halves = [{"properties": {f"{half}{at}": {} for at in range(130)}} for half in "ab"]
    with pytest.raises(GrammarError, match="260 optional properties; at most 240"):
        Served({"type": "object", "allOf": halves})


def test_a_name_in_other_letters_is_no_other_name() -> None:
    """`\\u0061` is a: a listed property must not come back as one of the others."""
    schema = {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}
    assert Served({"type": "object"} | schema).accepts('{"a": "x", "b": 1}')
    assert not Served({"type": "object"} | schema).accepts('{"\\u0061": 1}')
    ruled_out = OPEN | {"properties": {"a": {}, "b": {}}, "not": {"required": ["a"]}}
    assert not Served(ruled_out).accepts('{"\\u0061": 1}')


@pytest.mark.parametrize(
    ("pattern", "fit", "unfit"),
    [
        ('^[^"]*$', ["", "a\\b", "\n", "é🙂"], ['"', 'a"b']),
        (r"^[^\\]$", ['"', "a"], ["\\"]),
        (r'^[^\\"/]+$', ["ab"], ['a"', "a\\", "a/"]),
        (r"^[^]a]$", ["b", '"'], ["]", "a"]),
        (r"^\[[^ -~]\]$", ["[é]", "[\n]"], ['["]', "[\\]"]),
        ("^[^a-z][^b]$", ['"a', "1\\"], ["aa", "1b"]),
    ],
)
def test_a_class_admits_what_it_excludes_in_no_disguise(
    pattern: str, fit: list[str], unfit: list[str]
) -> None:
    """The library takes an escaped quotation mark for a member of `[^"]`."""
    text = Served({"type": "string", "pattern": pattern})
    name = Served({"patternProperties": {pattern: {}}, "additionalProperties": False})
    for value in (*fit, *unfit):
        assert bool(re.search(pattern, value)) == (value in fit)
        assert text.admits(value) == (value in fit), value
        assert name.admits({value: 1}) == (value in fit), value


@pytest.mark.parametrize(
    ("low", "high"), list(itertools.combinations([-1.5, -1, -0.5, 0, 0.1, 1, 1.5], 2))
)
def test_a_number_is_between_its_bounds(low: float, high: float) -> None:
    for least, most in itertools.product(
        ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
    ):
        schema = {"type": "number", least: low, most: high}
        served, judge = Served(schema), jsonschema.Draft202012Validator(schema)
        for value in (low, high, (low + high) / 2, -2, -1, 0, 1, 2, -0.05, 0.05, 0.001, 1.01):
            assert served.admits(value) == judge.is_valid(value), (schema, value)


@pytest.mark.parametrize("kind", ["oneOf", "anyOf"])
def test_alternatives_get_no_other_properties(kind: str) -> None:
    served = Served({kind: [CIRCLE, SQUARE]})
    assert served.admits({"kind": "circle", "radius": 1})
    assert not served.admits({"kind": "circle", "radius": 1, "more": 1})


def test_options_of_the_library_are_not_the_clients() -> None:
    served = Served({"type": "integer", "x-guidance": {"lenient": True, "anything": 1}})
    assert served.admits(1)
    assert not served.admits("x")
