"""Turns a request's fields into StructuredOutputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from penstock.errors import InvalidRequest
from penstock.request.structured_outputs import PARAM, StructuredOutputs
from penstock_gateway.http.errors import clip
from penstock_gateway.request.fields import GenerateFields
from penstock_gateway.request.structured_fields import ResponseFormat, StructuredFields

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}
"""vLLM's older fields, and what they are called in structured_outputs."""
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def structure_of(request: GenerateFields, max_bytes: int) -> tuple[str, StructuredOutputs] | None:
    """The field that says what the output must look like, and what it says; None where none does.

    max_bytes: that the engine core takes; 0: it takes none, and says so itself.  Raises
    InvalidRequest, also where two fields do, and for more than that before it is read.
    """
    found: tuple[str, dict[str, Any]] | None = None
    for field, wanted in _given(request):
        if found is not None:
            raise InvalidRequest(
                f"{found[0]} and {field} both constrain the output: set only one of them",
                param=field,
            )
        found = field, wanted
    if found is None:
        return None
    field, wanted = found
    if max_bytes:
        _check_size(field, wanted, max_bytes)
    try:
        return field, StructuredOutputs(**wanted)
    except InvalidRequest as error:
        raise blame(error, field) from None


def structure_field(request: GenerateFields) -> str | None:
    """The field alone, of a request that `structure_of` has found no fault with."""
    return next((field for field, _ in _given(request)), None)


def blame(error: InvalidRequest, field: str | None) -> InvalidRequest:
    """The error, naming the field that the client has used for its structure."""
    if error.param != PARAM or field in (None, PARAM):
        return error
    message = error.message.removeprefix(f"{PARAM}: ")
    return InvalidRequest(f"{field}: {message}", param=field, code=error.code)


def _given(request: GenerateFields) -> Iterator[tuple[str, dict[str, Any]]]:
    if request.response_format is not None:
        wanted = _from_format(request.response_format)
        if wanted is not None:
            yield "response_format", wanted
    if request.structured_outputs is not None:
        yield PARAM, _from_fields(request.structured_outputs)
    for field, name in GUIDED.items():
        value = getattr(request, field)
        if value is not None and value != []:
            yield field, {name: value}


def _check_size(field: str, wanted: dict[str, Any], most: int) -> None:
    """Raises InvalidRequest for what is far too long, before it is searched and written again. What
    is less is counted exactly where it is sent. most: bytes."""
    for value in wanted.values():
        try:
            size = len(value) if isinstance(value, str) else len(msgspec.json.encode(value))
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
            continue  # Which is said where it is read.
        if size > most:
            raise InvalidRequest(
                f"{field}: it has {size} bytes or more; at most {most} are allowed", param=field
            )


def _from_format(wanted: ResponseFormat) -> dict[str, Any] | None:
    if wanted.type not in FORMATS:
        _refuse("response_format.type", f"is {clip(wanted.type)}; allowed: {', '.join(FORMATS)}")
    tag = ("structures", "triggers", "format")
    used = {"json_schema": ("json_schema",), "structural_tag": tag}.get(wanted.type, ())
    for name in ("json_schema", *tag):
        if name not in used and getattr(wanted, name) is not None:
            _refuse(f"response_format.{name}", f"is not allowed with type {wanted.type}")
    if wanted.type == "json_object":
        return {"json_object": True}
    if wanted.type == "json_schema":
        return {"json": _schema(wanted)}
    if wanted.type == "structural_tag":
        fields = {name: getattr(wanted, name) for name in tag}
        return {"structural_tag": {k: v for k, v in fields.items() if v is not None}}
    return None


def _schema(wanted: ResponseFormat) -> dict[str, Any] | str:
    if wanted.json_schema is None:
        _refuse("response_format.json_schema", "is missing")
    schema = wanted.json_schema.schema
    if schema is None:
        _refuse("response_format.json_schema.schema", "is missing")
    if isinstance(schema, bool):
        return "true" if schema else "false"
    return schema


def _from_fields(wanted: StructuredFields) -> dict[str, Any]:
    for name in wanted.__struct_fields__:
        value = getattr(wanted, name)
        if name not in KINDS and value not in (None, False):
            raise InvalidRequest(
                f"structured_outputs.{name} is {clip(value)}, which is not supported; "
                "allowed: false or null",
                param=f"structured_outputs.{name}",
                code="unsupported_value",
            )
    fields = {name: getattr(wanted, name) for name in KINDS}
    return {name: value for name, value in fields.items() if value is not None}


def _refuse(field: str, complaint: str) -> NoReturn:
    raise InvalidRequest(f"{field} {complaint}", param=field)
