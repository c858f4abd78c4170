"""Numbers of a body's schemas that no double holds: decoded, they would be others."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.request.written_numbers import LONG, WrittenNumber, read_number

SCHEMAS = frozenset(
    (
        *("parameters", "input_schema", "inputSchema", "schema", "json_schema", "format", "value"),
        *("guided_json", "json", "structural_tag"),
    )
)
"""Fields of requests that hold a schema."""
LIMITS = frozenset(
    (
        *("const", "enum", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
"""Keywords of a schema that hold an output's numbers."""
_PIECE = 1 << 18
_OVERLAP = 32
_reading = msgspec.json.Decoder(float_hook=read_number)


def check_numbers(body: bytes) -> None:
    """Raises InvalidRequest that names one of them. body: JSON that has been decoded."""
    for at in range(0, len(body), _PIECE):
        if LONG.search(body, at, at + _PIECE + _OVERLAP):
            break
    else:
        return
    stack: list[tuple[str, bool, bool, Any]] = [("", False, False, _reading.decode(body))]
    while stack:
        place, in_schema, limits, value = stack.pop()
        if isinstance(value, WrittenNumber):
            if limits:
                raise InvalidRequest(
                    f"{place[:200]} is {value.text[:100]}, which can't be held exactly: numbers of "
                    "up to 15 digits can; write it as a string",
                    param=place[:200],
                    code="invalid_value",
                )
        elif isinstance(value, dict):
            for name, each in value.items():
                inner = in_schema or name in SCHEMAS
                held = limits or (in_schema and name in LIMITS)
                if isinstance(each, dict | list | WrittenNumber):
                    stack.append((f"{place}.{name}".removeprefix("."), inner, held, each))
        elif isinstance(value, list):
            for at, each in enumerate(value):
                if isinstance(each, dict | list | WrittenNumber):
                    stack.append((f"{place}[{at}]", in_schema, limits, each))
