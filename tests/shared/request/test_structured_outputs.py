"""What a StructuredOutputs may be, and what its client is told of it."""

from __future__ import annotations

import json

import pytest

from penstock import SamplingParams, StructuredOutputs
from penstock.errors import InvalidRequest
from penstock.protocol.common import Grammar

SCHEMA = {"type": "object", "properties": {"ß": {"type": "string"}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"json": SCHEMA}, ("json_schema", SCHEMA)),
        ({"json": json.dumps(SCHEMA)}, ("json_schema", SCHEMA)),
        ({"json": "true"}, ("json_schema", True)),
        ({"json_object": True}, ("json_object", "")),
        ({"regex": "a+"}, ("regex", "a+")),
        ({"choice": ["a", '"b"', "日"]}, ("choice", ["a", '"b"', "日"])),
        ({"grammar": 'start: "a"'}, ("lark", 'start: "a"')),
        ({"grammar": 'start: "::="'}, ("lark", 'start: "::="')),
        ({"grammar": '# x\nroot ::= "a"'}, ("gbnf", '# x\nroot ::= "a"')),
        ({"structural_tag": {"format": {}}}, ("structural_tag", {"format": {}})),
        ({"structural_tag": '{"format": {}}'}, ("structural_tag", {"format": {}})),
    ],
)
def test_what_the_engine_is_told(fields, expected):
    definition = StructuredOutputs(**fields).definition()
    text = definition.text
    is_json = definition.kind in ("json_schema", "choice", "structural_tag")
    parsed = json.loads(text) if is_json else text
    assert (definition.kind, parsed) == expected
    assert SamplingParams(structured_outputs=StructuredOutputs(**fields)).n == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {},
            "grammar, json_object and structural_tag; it has none",
        ),
        ({"regex": "a", "choice": ["b"]}, "it has regex, choice"),
        ({"json_object": False}, "json_object can only be true"),
        ({"json": "{"}, "json is not a JSON schema"),
        ({"json": "[1]"}, "an object, not list"),
        ({"json": 7}, "an object, not int"),
        ({"json": {"a": {1, 2}}}, "can't be written as JSON"),
        ({"json": {"a": float("nan")}}, "can't be written as JSON"),
        ({"json": "[" * 100_000}, "json is not a JSON schema"),
        ({"regex": ""}, "regex must be a string that isn't empty"),
        ({"regex": 5}, "regex must be a string"),
        ({"grammar": ["x"]}, "grammar must be a string"),
        ({"regex": "\ud800"}, "lone surrogates"),
        ({"json": {"a": "\ud800"}}, "lone surrogates"),
        ({"choice": []}, "1 to 4096 strings"),
        ({"choice": "abc"}, "1 to 4096 strings"),
        ({"choice": ["a"] * 4097}, "1 to 4096 strings"),
        ({"choice": ["a", ""]}, "each choice must be a string that isn't empty"),
        ({"choice": [1]}, "each choice must be a string"),
    ],
)
def test_a_wrong_definition_of_an_output_is_named(fields, words):
    with pytest.raises(InvalidRequest) as refused:
        StructuredOutputs(**fields)
    assert words in refused.value.message
    assert refused.value.param == "structured_outputs"


def test_size_is_counted_in_bytes():
    wanted = StructuredOutputs(regex="ß" * 50)
    assert wanted.grammar_within(100, ("regex",)) == Grammar("regex", "ß" * 50)
    with pytest.raises(InvalidRequest, match="100 bytes; at most 99"):
        wanted.grammar_within(99, ("regex",))


def test_an_engine_is_not_sent_a_kind_that_it_does_not_know():
    """It could not even decode the message."""
    with pytest.raises(InvalidRequest, match="too old for a gbnf grammar"):
        StructuredOutputs(grammar='root ::= "a"').grammar_within(100, ("lark", "regex"))


def test_an_engine_that_knows_no_grammars_is_not_sent_any():
    """It would ignore the field, and answer freely."""
    with pytest.raises(InvalidRequest, match="too old"):
        StructuredOutputs(json_object=True).grammar_within(0, ("json_object",))


def test_sampling_params_say_what_does_not_go_together():
    with pytest.raises(InvalidRequest, match="ignore_eos can't be combined"):
        SamplingParams(ignore_eos=True, structured_outputs=StructuredOutputs(regex="a"))
    with pytest.raises(InvalidRequest, match=r"must be StructuredOutputs\(...\), not dict"):
        SamplingParams(structured_outputs={"regex": "a"})
