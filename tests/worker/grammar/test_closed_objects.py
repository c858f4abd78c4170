"""Which objects of a schema are closed, and that nothing becomes valid that was not."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_worker.grammar_text.closed_objects import closed
from penstock_worker.grammar_text.schemas.rewriter import EXTENDED
from penstock_worker.grammar_text.schemas.served import served
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


@pytest.mark.parametrize("draft", ["04", "06", "07"])
@pytest.mark.parametrize("beside", ["properties", "allOf"])
def test_a_reference_with_properties_beside_it_leaves_its_target_open(
    draft: str, beside: str
) -> None:
    """Such a draft ignores what is beside a reference; its authors write it all the same."""
    own: Any = {"size": {"type": "integer"}}
    schema = {
        "$schema": f"http://json-schema.org/draft-{draft}/schema#",
        "type": "object",
        "properties": {
            "shoe": {"$ref": "#/definitions/thing", beside: own},
            "hat": {"$ref": "#/definitions/other", "description": "Worn on the head."},
        },
        "definitions": {
            "thing": {"$ref": "#/definitions/named"},
            "named": {"type": "object", "properties": {"name": {"type": "string"}}},
            "other": {"type": "object", "properties": {"name": {"type": "string"}}},
        },
    }
    if beside == "allOf":
        schema["properties"]["shoe"][beside] = [{"properties": own}]
    made = served(schema, lambda schema: "")
    assert EXTENDED not in made
    judge = jsonschema.Draft202012Validator(made)
    shoe = {"shoe": {"name": "Mary Jane", "size": 38}}
    jsonschema.validate(shoe, schema)
    assert judge.is_valid(shoe)
    assert not judge.is_valid({"hat": {"name": "bowler", "size": 58}})
    assert not judge.is_valid({**shoe, "glove": 1})


@given(seed=st.integers(0, 10_000), extra=st.dictionaries(st.text(max_size=2), st.integers()))
def test_what_it_admits_was_admitted(seed: int, extra: dict[str, int]) -> None:
    schema = random_schemas.schema(seed)
    for value in ({}, extra, [extra], 1, "x"):
        if jsonschema.Draft202012Validator(closed(schema)).is_valid(value):
            jsonschema.Draft202012Validator(schema).validate(value)
