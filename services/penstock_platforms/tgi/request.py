"""The body of Text Generation Inference's /generate, and the same in the words of
/v1/completions."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.errors import InvalidRequest
from penstock.request.sampling_params import MAX_LOGPROBS, MAX_N
from penstock_gateway.completions.endpoint import CompletionRequest
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import ErrorShape
from penstock_gateway.request.dialect import Dialect, NamedField, named, same
from penstock_gateway.request.fields import (
    Flag,
    Number,
    RequestFields,
    Text,
    UnsupportedField,
    Whole,
)
from penstock_gateway.request.structure import StructuredFields

DEFAULT_NEW_TOKENS = 100


class GeneratedGrammar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """value: a JSON schema for json, an expression for regex, an object with the JSON schema as its
    `schema` for json_schema."""

    type: Literal["json", "regex", "json_schema"]
    value: dict[str, Any] | str


class GenerateParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """max_new_tokens: 100 by default.  do_sample: whether tokens are drawn; without it they are if
    temperature, top_k or top_p says how.  stop: the answer keeps the text that it ends with.
    return_full_text: the prompt stands in front.  truncate: the prompt's last tokens that are kept.
    details: the answer has its tokens with their log-probabilities.  top_n_tokens: likeliest tokens
    that are shown at each place.  adapter_id: an adapter's name."""

    adapter_id: Text = None
    best_of: Whole = None
    details: Flag = None
    do_sample: Flag = None
    frequency_penalty: Number = None
    grammar: GeneratedGrammar | None = None
    max_new_tokens: Whole = None
    repetition_penalty: Number = None
    return_full_text: Flag = None
    seed: Whole = None
    stop: str | list[str] | None = None
    temperature: Number = None
    top_k: Whole = None
    top_n_tokens: Whole = None
    top_p: Number = None
    truncate: Whole = None

    # Only at their neutral value.
    decoder_input_details: Flag = None
    typical_p: Number = None
    watermark: Flag = None


PARAMETERS = "parameters"
TGI = Dialect(
    *same("stop", "seed", "top_p", "top_k", "best_of", within=PARAMETERS),
    *same("repetition_penalty", "frequency_penalty", within=PARAMETERS),
    NamedField("parameters.max_new_tokens", "max_tokens"),
    NamedField("parameters.truncate", "truncate_prompt_tokens"),
    *named("inputs", "prompt"),
    *named("parameters.temperature", "temperature"),
    *named("parameters.grammar", "structured_outputs"),
    *named("parameters.top_n_tokens", "logprobs"),
    *named("parameters.best_of", "n"),
    unsupported=(
        UnsupportedField("parameters.decoder_input_details", (False,)),
        UnsupportedField("parameters.typical_p", (1.0,)),
        UnsupportedField("parameters.watermark", (False,)),
    ),
)
"""Text Generation Inference's names."""


class GenerateRequest(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """inputs: the prompt, as it is: no chat template is filled."""

    inputs: str
    parameters: GenerateParameters = GenerateParameters()


class TGIError(msgspec.Struct, frozen=True):
    """The whole body of an error response, and the last event of a stream that fails. error_type:
    validation, overloaded or generation."""

    error: str
    error_type: str


def encoded(error: HTTPError, request_id: str = "") -> bytes:
    """The error as JSON."""
    kind = "generation" if error.status >= 500 else "validation"
    if error.status in (429, 503):
        kind = "overloaded"
    return msgspec.json.encode(TGIError(error.body.message, kind))


ERRORS = ErrorShape(TGIError, encoded)


def check(request: GenerateRequest) -> None:
    """Raises InvalidRequest for what is wrong whatever the model."""
    TGI.check(request)
    parameters = request.parameters
    count = parameters.top_n_tokens
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"parameters.top_n_tokens must be a whole number in [0, {MAX_LOGPROBS}], not {count}",
            param="parameters.top_n_tokens",
        )
    choices = parameters.best_of
    if choices is not None and not 1 <= choices <= MAX_N:
        raise InvalidRequest(
            f"parameters.best_of must be a whole number in [1, {MAX_N}], not {choices}",
            param="parameters.best_of",
        )
    if parameters.truncate is not None and parameters.truncate < 1:
        raise InvalidRequest(
            f"parameters.truncate must be a whole number ≥ 1, not {parameters.truncate}",
            param="parameters.truncate",
        )


def with_adapter(request: GenerateRequest) -> GenerateRequest:
    """The request for the adapter that its parameters name. Raises InvalidRequest."""
    name = request.parameters.adapter_id
    if name is None:
        return request
    if request.model not in (None, name):
        raise InvalidRequest(
            "model and parameters.adapter_id differ; set only one of them",
            param="parameters.adapter_id",
        )
    return msgspec.structs.replace(request, model=name)


def in_completions_words(request: GenerateRequest) -> CompletionRequest:
    """The request as /v1/completions takes it."""
    asked = request.parameters
    draws = asked.do_sample or any(
        value is not None and value != plain
        for value, plain in ((asked.temperature, 1.0), (asked.top_k, 0), (asked.top_p, 1.0))
    )
    shown = asked.top_n_tokens or 0
    return CompletionRequest(
        prompt=request.inputs,
        stream=request.stream,
        temperature=asked.temperature if draws else 0.0,
        include_stop_str_in_output=True,
        structured_outputs=_structure(asked.grammar),
        logprobs=shown if asked.details or shown or request.stream else None,
        **TGI.ours(request),
    )


def _structure(grammar: GeneratedGrammar | None) -> StructuredFields | None:
    """Raises InvalidRequest for a value of the wrong kind."""
    if grammar is None:
        return None
    value = grammar.value
    if isinstance(value, str):
        if grammar.type == "regex":
            return StructuredFields(regex=value)
        if grammar.type == "json":
            return StructuredFields(json=value)
    elif grammar.type == "json":
        return StructuredFields(json=value)
    elif grammar.type == "json_schema" and isinstance(value.get("schema"), dict):
        return StructuredFields(json=value["schema"])
    raise InvalidRequest(
        "parameters.grammar.value must be a JSON schema for json, an expression for regex, and an"
        " object with a `schema` for json_schema",
        param="parameters.grammar",
    )
