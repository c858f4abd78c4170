"""Which documents each keyword leaves, for schemas by hand: jsonschema says so too."""

from __future__ import annotations

import itertools
import re
from typing import Any

import jsonschema
import pytest

from penstock_worker.grammar.errors import GrammarError
from tests.grammars.byte_matcher import Served
from tests.grammars.schema_parts import CIRCLE, OPEN, SQUARE, kind_is
from tests.grammars.served_choices import CHOICES
from tests.grammars.served_opposites import OPPOSITES

NO_A: dict[str, Any] = {"properties": {"x": {"not": {"pattern": "a"}}}}
SERVED: dict[str, tuple[Any, list[Any], list[Any]]] = CHOICES | OPPOSITES


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
    "$ref is '#/$defs/a', which only leads back to itself": {
        "properties": {"x": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
    },
    "$ref is '#', which only leads back to itself": {"$ref": "#"},
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
