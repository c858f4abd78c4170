"""A schema's number that no double holds is refused at the door, wherever the schema stands."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.errors import InvalidRequest
from penstock_dialects.ollama.request import OllamaChatRequest
from penstock_gateway.chat.endpoint import ChatRequest
from penstock_gateway.request.decoding import decode

LONG = "0.12345678901234567890123"
MESSAGES = '"messages": [{"role": "user", "content": "Hi 0.12345678901234567890123"}]'


def read(kind: Any, text: str) -> Any:
    return decode(text.encode(), msgspec.json.Decoder(kind))


@pytest.mark.parametrize(
    ("kind", "field", "param"),
    [
        (
            ChatRequest,
            '"response_format": {"type": "json_object", "schema": %s}',
            "response_format.schema",
        ),
        (
            ChatRequest,
            '"tools": [{"type": "function", "function": {"name": "f", "parameters": %s}}]',
            "tools[0].function.parameters",
        ),
        (OllamaChatRequest, '"format": %s', "format"),
    ],
)
@pytest.mark.parametrize("keyword", ["const", "minimum", "multipleOf"])
def test_it_is_named(kind: Any, field: str, param: str, keyword: str) -> None:
    schema = f'{{"properties": {{"x": {{"{keyword}": {LONG}}}}}}}'
    with pytest.raises(InvalidRequest, match=LONG) as raised:
        read(kind, f'{{"model": "m", {MESSAGES}, {field % schema}}}')
    assert raised.value.param == f"{param}.properties.x.{keyword}"
    shorter = schema.replace(LONG, "0.123456789012345")
    read(kind, f'{{"model": "m", {MESSAGES}, {field % shorter}}}')


def test_what_holds_no_output_is_as_it_was() -> None:
    """Examples, defaults, a call's arguments; and integers of any size, which Python holds."""
    schema = f'{{"default": {LONG}, "enum": [12345678901234567890123]}}'
    tool = f'{{"type": "function", "function": {{"name": "f", "parameters": {schema}}}}}'
    request = read(ChatRequest, f'{{"model": "m", {MESSAGES}, "tools": [{tool}]}}')
    assert request.tools[0].function.parameters["enum"] == [12345678901234567890123]
    assert request.tools[0].function.parameters["default"] == float(LONG)
    assert json.dumps(request.tools[0].function.parameters)
