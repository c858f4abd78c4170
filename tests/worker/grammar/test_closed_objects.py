"""Which objects of a schema are closed, and that nothing becomes valid that was not."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_worker.grammar_text.closed_objects import closed
from testing import random_schemas

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "home": {"$ref": "#/$defs/place"}},
    "required": ["name"],
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def test_what_lists_its_properties_has_no_others() -> None:
    made = closed(PERSON)
    assert made["additionalProperties"] is False
    assert made["$defs"]["place"]["additionalProperties"] is False
    assert "additionalProperties" not in PERSON


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
        {"properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"properties": {"a": {}}, "required": ["b"]},
        {"properties": {"a": {}}, "minProperties": 2},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"not": {"properties": {"a": {"type": "string"}}}},
        {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "$ref": "#/$defs/x", "$defs": {"x": {"properties": {"b": {}}}}},
        {"enum": [{"properties": {"a": 1}}]},
        True,
    ],
)
def test_what_may_have_others_stays_open(schema: Any) -> None:
    assert closed(schema) == schema


@given(seed=st.integers(0, 10_000), extra=st.dictionaries(st.text(max_size=2), st.integers()))
def test_what_it_admits_was_admitted(seed: int, extra: dict[str, int]) -> None:
    schema = random_schemas.schema(seed)
    for value in ({}, extra, [extra], 1, "x"):
        if jsonschema.Draft202012Validator(closed(schema)).is_valid(value):
            jsonschema.Draft202012Validator(schema).validate(value)
