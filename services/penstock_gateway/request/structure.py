"""What a request may say of its answer's form: response_format and structured_outputs."""

from __future__ import annotations

from typing import Any

import msgspec


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """schema: a JSON schema.  strict: outputs always follow the schema, whatever it says.
    name, description: accepted, without effect; OpenAI's API needs the name."""

    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """type: text, json_object, json_schema or structural_tag; of Text Generation Inference's older
    clients also json and regex, whose value is a JSON schema or an expression.

    schema, value: a JSON schema without a name, for json_object or json_schema, as llama.cpp's
    server and Text Generation Inference have it.
    structures, triggers: a structural tag in vLLM's older shape; format: in its newer one.
    """

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | bool | None = None
    value: dict[str, Any] | bool | str | None = None
    structures: list[Any] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class StructuredFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's structured_outputs: exactly one of json, regex, choice, grammar, json_object and
    structural_tag; see penstock.StructuredOutputs.

    The others are options of its libraries: accepted at their defaults.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None

    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
