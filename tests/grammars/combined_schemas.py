"""Hypothesis strategies: schemas in which everything that is served by other words is combined, and
documents for them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "d")
VALUES: tuple[Any, ...] = (None, True, False, 0, 1, 2, 2.5, -3, "", "x", "xy", '"', [], ["x"], {})


def leaves(*, opposite: bool = False) -> st.SearchStrategy[Any]:
    """Schemas of one value. opposite: mostly such whose opposite can be said in full."""
    scalars = [value for value in VALUES if not isinstance(value, list | dict)]
    values = [value for value in VALUES if not (opposite and value == ["x"])]
    types = ["null", "boolean", "number", "string", "array", "object"]
    if not opposite:
        types.append("integer")
    said_in_part = [
        {"multipleOf": 2},
        {"type": "integer"},
        {"items": {"type": "string"}},
        {"type": "array", "prefixItems": [{"const": "x"}], "items": False},
        {"const": ["x"]},
        {"patternProperties": {"^[xy]": {"type": "integer"}}},
        {"type": "object", "additionalProperties": False},
        {"minProperties": 1},
    ]
    return st.one_of(
        st.sampled_from([True, {}]),
        st.sampled_from(scalars).map(lambda value: {"const": value}),
        st.lists(st.sampled_from(values), min_size=1, max_size=3).map(lambda each: {"enum": each}),
        st.lists(st.sampled_from(types), min_size=1, max_size=2, unique=True).map(
            lambda each: {"type": each}
        ),
        st.sampled_from(
            [
                {"minimum": 1},
                {"maximum": 1},
                {"exclusiveMaximum": 2},
                {"exclusiveMinimum": 2, "type": "number"},
                {"minLength": 1},
                {"type": "string", "maxLength": 1},
                {"type": "array", "maxItems": 0},
                {"minItems": 1},
                *said_in_part,
            ]
        ),
    )


def conditions() -> st.SearchStrategy[Any]:
    """Schemas about an object's properties."""
    names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
    properties = st.dictionaries(
        st.sampled_from(NAMES), leaves(opposite=True), min_size=1, max_size=2
    )
    plain = st.one_of(
        names.map(lambda each: {"required": each}),
        properties.map(lambda each: {"properties": each}),
        properties.map(lambda each: {"properties": each, "required": list(each)}),
        leaves(opposite=True).map(lambda each: {"additionalProperties": each}),
        properties.map(lambda each: {"properties": each, "additionalProperties": False}),
        st.sampled_from(
            [
                {"patternProperties": {"^[bx]": {"type": "integer"}}},
                {"patternProperties": {"^[bx]": False}},
                {"maxProperties": 1},
                {"maxProperties": 2},
                {"minProperties": 2},
            ]
        ),
    )
    return st.recursive(plain, _combined, max_leaves=4)


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=2, max_size=3)
    needs = st.dictionaries(
        st.sampled_from(NAMES),
        st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        min_size=1,
        max_size=2,
    )
    return st.one_of(
        inner.map(lambda each: {"not": each}),
        several.map(lambda each: {"oneOf": each}),
        several.map(lambda each: {"anyOf": each}),
        several.map(lambda each: {"allOf": each}),
        st.tuples(inner, inner, inner).map(lambda e: {"if": e[0], "then": e[1], "else": e[2]}),
        needs.map(lambda each: {"dependentRequired": each}),
        st.tuples(st.sampled_from(NAMES), inner).map(lambda e: {"dependentSchemas": {e[0]: e[1]}}),
    )


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Schemas of objects. All names are listed, so a document's properties have an order."""
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: draw(leaves()) for name in NAMES},
        "additionalProperties": draw(st.sampled_from([True, False, {"type": "integer"}])),
    }
    bounds = ("minProperties", "maxProperties")
    for name, bound in zip(bounds, draw(st.sampled_from(BOUNDS)), strict=True):
        if bound is not None:
            made[name] = bound
    names = draw(st.sampled_from([None, *NAME_SCHEMAS]))
    if names is not None:
        made["propertyNames"] = names
    if draw(st.booleans()):
        made["required"] = draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    return made | draw(_combined(conditions()))


BOUNDS = [(None, None), (None, None), (1, None), (2, None), (None, 1), (None, 3), (1, 2)]
NAME_SCHEMAS = (
    {"enum": ["a", "b", "x"]},
    {"pattern": "^[a-cx]$"},
    {"maxLength": 1},
    {"not": {"const": "d"}},
)


def documents() -> st.SearchStrategy[dict[str, Any]]:
    """With listed properties first, in order, and others after them."""
    order = (*NAMES, "x", "yy")
    return st.dictionaries(st.sampled_from(order), st.sampled_from(VALUES), max_size=5).map(
        lambda made: {name: made[name] for name in order if name in made}
    )


@st.composite
def array_schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Schemas of arrays of at most three items."""
    made: dict[str, Any] = {"type": "array", "items": draw(leaves()), "maxItems": 3}
    if draw(st.booleans()):
        made["prefixItems"] = draw(st.lists(leaves(), min_size=1, max_size=2))
    said = st.one_of(
        leaves().map(lambda each: {"contains": each}),
        st.just({"uniqueItems": True}),
        st.sampled_from([{"minItems": 1}, {"minItems": 2}, {"maxItems": 1}, {"maxItems": 2}]),
        leaves().map(lambda each: {"items": each}),
        leaves().map(lambda each: {"prefixItems": [each], "items": {"type": "string"}}),
    )
    several = st.lists(said, min_size=2, max_size=2)
    combined = st.one_of(
        said,
        said.map(lambda each: {"not": each}),
        several.map(lambda each: {"oneOf": each}),
        several.map(lambda each: {"if": each[0], "then": each[1]}),
        several.map(lambda each: {"allOf": each}),
    )
    return made | draw(combined)


def arrays() -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(VALUES), max_size=4)
