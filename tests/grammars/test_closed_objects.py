"""Which objects of a schema are closed, and that nothing becomes valid that was not."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_grammars.closed_objects import closed
from penstock_grammars.schemas.rewriter import EXTENDED
from penstock_grammars.schemas.served import served
from testing import random_schemas
from tests.met import met

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


def _opened(schema: Any) -> Any:
    """The schema without what its objects say of other properties."""
    if isinstance(schema, list):
        return [_opened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _opened(value) for key, value in schema.items() if key != "additionalProperties"}
    return kept


def _likely(schema: dict[str, Any], whole: dict[str, Any], choose: random.Random) -> Any:
    """A value that mostly follows the schema; some of its objects have a property more."""
    if "$ref" in schema:
        return _likely(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole, choose)
    if "anyOf" in schema:
        return _likely(choose.choice(schema["anyOf"]), whole, choose)
    if "enum" in schema:
        return choose.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            found = {k: _likely(v, whole, choose) for k, v in schema["properties"].items()}
            return found | ({"more": 1} if choose.random() < 0.2 else {})
        case "array":
            return [_likely(schema["items"], whole, choose) for _ in range(schema["minItems"])]
        case "string":
            return "Abc" if "pattern" in schema else "x" * schema.get("minLength", 0)
        case "integer" | "number":
            return schema["minimum"]
    return {"boolean": True, "null": None}.get(schema.get("type", ""), schema.get("const"))


@given(seed=st.integers(0, 10_000), choose=st.randoms(use_true_random=False))
def test_what_it_admits_was_admitted(seed: int, choose: random.Random) -> None:
    schema = _opened(random_schemas.schema(seed))
    narrow, wide = (jsonschema.Draft202012Validator(each) for each in (closed(schema), schema))
    for value in [_likely(schema, schema, choose) for _ in range(4)]:
        met("admitted", narrow.is_valid(value))
        met("no longer", wide.is_valid(value) and not narrow.is_valid(value))
        assert wide.is_valid(value) or not narrow.is_valid(value)
