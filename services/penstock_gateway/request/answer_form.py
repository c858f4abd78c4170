"""What an answer must look like, by the field of a request that says so: response_format,
structured_outputs or one of their older names."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NoReturn

import msgspec

from penstock.errors import Field, InvalidRequest
from penstock.request.structured_outputs import PARAM, StructuredOutputs
from penstock_gateway.http.errors import clip
from penstock_gateway.request.fields import GenerateFields
from penstock_gateway.request.structure import ResponseFormat, StructuredFields

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
OLDER_FORMATS = ("json", "regex")
"""Text Generation Inference's; what is said to be allowed leaves them out."""
GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
    "grammar": "grammar",
    "json_schema": "json",
}
"""vLLM's older fields and llama.cpp's, and what they are called in structured_outputs."""
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

_STRUCTURES = attrgetter("response_format", PARAM, *GUIDED)
_UNSTRUCTURED = (None,) * (2 + len(GUIDED))


def structure_of(request: GenerateFields, max_bytes: int) -> tuple[str, StructuredOutputs] | None:
    """The field that says what the output must look like, and what it says; None where none does.

    max_bytes: that the engine core takes; 0: it takes none, and says so itself.  Raises
    InvalidRequest, also where two fields differ, and for more than that before it is read.
    """
    if _STRUCTURES(request) == _UNSTRUCTURED:
        return None
    found: tuple[str, dict[str, Any]] | None = None
    for field, wanted in _structures(request):
        # The same twice comes from clients that speak to older and newer versions of vLLM.
        if found is not None and _alike(found[1], wanted):
            continue
        if found is not None:
            raise InvalidRequest(
                Field(found[0]),
                " and ",
                Field(field),
                " both constrain the output: set only one of them",
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


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both say the same: to Python 1 is true, and the order of properties doesn't matter,
    but the answer has it."""
    return msgspec.json.encode(one) == msgspec.json.encode(other)


def structure_field(request: GenerateFields) -> str | None:
    """The field alone, of a request that `structure_of` has found no fault with."""
    if _STRUCTURES(request) == _UNSTRUCTURED:
        return None
    return next((field for field, _ in _structures(request)), None)


def blame(error: InvalidRequest, field: str | None) -> InvalidRequest:
    """The error, naming the field that the client has used for its structure."""
    if error.param != PARAM or field in (None, PARAM):
        return error
    message = error.message.removeprefix(f"{PARAM}: ")
    return InvalidRequest(f"{field}: {message}", param=field, code=error.code)


def _structures(request: GenerateFields) -> Iterator[tuple[str, dict[str, Any]]]:
    if request.response_format is not None:
        wanted = _from_format(request.response_format)
        if wanted is not None:
            yield "response_format", wanted
    if request.structured_outputs is not None:
        yield PARAM, _from_fields(request.structured_outputs)
    for field, name in GUIDED.items():
        value = getattr(request, field)
        # llama.cpp's clients send an empty grammar for none.
        if value is not None and value != [] and (field, value) != ("grammar", ""):
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


_OF_TYPE = {
    "json_object": ("schema", "value"),
    "json": ("value",),
    "regex": ("value",),
    "json_schema": ("json_schema", "schema", "value"),
    "structural_tag": ("structures", "triggers", "format"),
}
"""Fields of a response_format that its type has; others are refused."""


def _from_format(wanted: ResponseFormat) -> dict[str, Any] | None:
    if wanted.type not in (*FORMATS, *OLDER_FORMATS):
        _refuse("response_format.type", f"is {clip(wanted.type)}; allowed: {', '.join(FORMATS)}")
    given = [name for name in wanted.__struct_fields__ if getattr(wanted, name) is not None]
    used = _OF_TYPE.get(wanted.type, ())
    for name in given:
        if name != "type" and name not in used:
            _refuse(f"response_format.{name}", f"is not allowed with type {wanted.type}")
    if wanted.type == "structural_tag":
        return {"structural_tag": {name: getattr(wanted, name) for name in used if name in given}}
    if wanted.type in OLDER_FORMATS and wanted.value is None:
        _refuse("response_format.value", "is missing")
    if wanted.type == "regex":
        if not isinstance(wanted.value, str):
            _refuse("response_format.value", "must be a string, a regular expression")
        return {"regex": wanted.value}
    schemas = [name for name in given if name in used]
    if len(schemas) > 1:
        _refuse(f"response_format.{schemas[1]}", f"is given beside {schemas[0]}; allowed: one")
    if isinstance(wanted.value, str):
        _refuse("response_format.value", "must be a JSON schema, not a string")
    if wanted.type == "json_schema" or schemas:
        return {"json": _schema(wanted)}
    return {"json_object": True} if wanted.type == "json_object" else None


def _schema(wanted: ResponseFormat) -> dict[str, Any] | str:
    bare = wanted.value if wanted.schema is None else wanted.schema
    if bare is None and wanted.json_schema is None:
        _refuse("response_format.json_schema", "is missing")
    schema = bare if wanted.json_schema is None else wanted.json_schema.schema
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
