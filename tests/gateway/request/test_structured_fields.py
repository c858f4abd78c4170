"""response_format, structured_outputs and guided_*: what they mean, and how they are refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from penstock.client import SequenceDelta
from penstock.errors import InvalidRequest
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.request.test_request_fields import BODIES, CHAT, TEXT, refusal

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"name": "n", "schema": SCHEMA, "strict": True, "description": "d"}
ORDERED = {"properties": {"a": {}, "b": {}}}
REVERSED = {"properties": {"b": {}, "a": {}}}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}
ACCEPTED: list[tuple[dict[str, Any], tuple[str, Any]]] = [
    ({"response_format": {"type": "json_object"}}, ("json_object", "")),
    ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, ("json_schema", SCHEMA)),
    # As llama.cpp's server and Text Generation Inference have it.
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, ("json_schema", SCHEMA)),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, ("json_schema", SCHEMA)),
    ({"response_format": {"type": "json_object", "value": SCHEMA}}, ("json_schema", SCHEMA)),
    ({"response_format": {"type": "json", "value": SCHEMA}}, ("json_schema", SCHEMA)),
    ({"response_format": {"type": "regex", "value": "a+"}}, ("regex", "a+")),
    ({"response_format": TAG}, ("structural_tag", {k: TAG[k] for k in ("structures", "triggers")})),
    ({"structured_outputs": {"json": SCHEMA}}, ("json_schema", SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, ("json_schema", SCHEMA)),
    ({"structured_outputs": {"regex": "a+"}}, ("regex", "a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, ("choice", ["a", "b"])),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, ("lark", 'start: "a"')),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, ("gbnf", 'root ::= "a"')),
    ({"structured_outputs": {"json_object": True}}, ("json_object", "")),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, ("structural_tag", TAG)),
    ({"structural_tag": json.dumps(TAG)}, ("structural_tag", TAG)),
    ({"guided_json": SCHEMA}, ("json_schema", SCHEMA)),
    ({"guided_regex": "a+"}, ("regex", "a+")),
    ({"guided_choice": ["a", "b"]}, ("choice", ["a", "b"])),
    ({"guided_grammar": 'root ::= "a"'}, ("gbnf", 'root ::= "a"')),
    ({"grammar": 'root ::= "a"'}, ("gbnf", 'root ::= "a"')),
    ({"json_schema": SCHEMA, "grammar": ""}, ("json_schema", SCHEMA)),
    # As guidance says it to older and newer versions of vLLM at once.
    (
        {"guided_grammar": 'start: "a"', "structured_outputs": {"grammar": 'start: "a"'}},
        ("lark", 'start: "a"'),
    ),
]


@pytest.mark.parametrize("url", [CHAT, TEXT])
@pytest.mark.parametrize(("fields", "expected"), ACCEPTED)
async def test_what_the_engine_is_told(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    url: str,
    fields: dict[str, Any],
    expected: tuple[str, Any],
) -> None:
    response = await http.post(url, json=BODIES[url] | fields)
    assert response.status_code == 200, response.text
    wanted = engine.submitted[0][1].structured_outputs
    assert wanted is not None
    definition = wanted.definition()
    is_json = definition.kind in ("json_schema", "choice", "structural_tag")
    assert (
        definition.kind,
        json.loads(definition.text) if is_json else definition.text,
    ) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": None, "structured_outputs": None},
        {"guided_choice": []},
    ],
)
async def test_what_asks_for_nothing(
    http: httpx.AsyncClient, engine: FakeEngineClient, fields: dict[str, Any]
) -> None:
    assert (await http.post(CHAT, json=BODIES[CHAT] | fields)).status_code == 200
    assert engine.submitted[0][1].structured_outputs is None


@pytest.mark.parametrize("url", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {}}, "response_format.type", "missing"),
        ({"response_format": {"type": "json"}}, "response_format.value", "is missing"),
        ({"response_format": {"type": "regex"}}, "response_format.value", "is missing"),
        (
            {"response_format": {"type": "json", "value": "a+"}},
            "response_format.value",
            "a JSON schema",
        ),
        (
            {"response_format": {"type": "regex", "value": SCHEMA}},
            "response_format.value",
            "a regular expression",
        ),
        ({"response_format": "json"}, "response_format", "got str"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "is missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
            "is missing",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": NAMED}},
            "response_format.json_schema",
            "not allowed with",
        ),
        (
            {"response_format": {"type": "text", "schema": SCHEMA}},
            "response_format.schema",
            "not allowed with",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED, "schema": SCHEMA}},
            "response_format.schema",
            "given beside json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED | {"shema": {}}}},
            "response_format.json_schema.shema",
            "did you mean schema?",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "json, regex"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "regex"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "not supported",
        ),
        ({"guided_json": "{"}, "guided_json", "guided_json: json is not a JSON schema"),
        ({"guided_regex": ""}, "guided_regex", "isn't empty"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "set only one of them"),
        (
            {"guided_regex": "a", "structured_outputs": {"regex": "b"}},
            "guided_regex",
            "set only one of them",
        ),
        (
            {"guided_json": {"const": 1}, "structured_outputs": {"json": {"const": True}}},
            "guided_json",
            "set only one of them",
        ),
        (
            {"guided_json": ORDERED, "structured_outputs": {"json": REVERSED}},
            "guided_json",
            "set only one of them",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "response_format and structured_outputs",
        ),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "can't be combined"),
    ],
)
async def test_a_wrong_field_of_a_structured_output_is_named(
    http: httpx.AsyncClient, url: str, fields: dict[str, Any], param: str, says: str
) -> None:
    error = await refusal(http, url, fields)
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["response_format", "guided_json", "structured_outputs"])
async def test_the_workers_verdict_is_a_400_that_names_the_clients_field(
    http: httpx.AsyncClient, engine: FakeEngineClient, field: str, stream: bool
) -> None:
    engine.refusal = InvalidRequest("Invalid type: foo", param="structured_outputs")
    value = {
        "response_format": {"type": "json_schema", "json_schema": NAMED},
        "guided_json": SCHEMA,
        "structured_outputs": {"json": SCHEMA},
    }[field]
    error = await refusal(http, CHAT, {field: value, "stream": stream})
    assert error["param"] == field
    assert "Invalid type: foo" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_grows_too_complex_is_the_requests_fault(
    http: httpx.AsyncClient, engine: FakeEngineClient, stream: bool
) -> None:
    failed = SequenceDelta(
        index=0, finish_reason="error", error="too slow", error_code="complex_grammar"
    )
    engine.script = lambda prompt, params: [[failed]]
    error = await refusal(http, CHAT, {"guided_regex": "a+", "stream": stream})
    assert error["param"] == "guided_regex"
    assert error["code"] == "complex_grammar"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_could_not_be_compiled_now_may_come_again(
    http: httpx.AsyncClient, engine: FakeEngineClient, stream: bool
) -> None:
    failed = SequenceDelta(
        index=0, finish_reason="error", error="it stood still", error_code="unavailable"
    )
    engine.script = lambda prompt, params: [[failed]]
    reply = await http.post(CHAT, json=BODIES[CHAT] | {"guided_regex": "a+", "stream": stream})
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert "it stood still" in reply.json()["error"]["message"]


async def test_a_deep_schema_is_refused_and_not_a_crash(http: httpx.AsyncClient) -> None:
    for depth in (900, 5_000):
        schema = '{"items":' * depth + "{}" + "}" * depth
        body = f'{{"prompt": "x", "guided_json": {schema}}}'
        response = await http.post(TEXT, content=body)
        assert response.status_code in (200, 400), response.text
