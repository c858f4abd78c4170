"""From a ModelInferRequest to a body of the HTTP API."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.completions.endpoint import CompletionRequest
from penstock_gateway.request.body import TextsAmount
from penstock_rpc.kserve.tensors import EMBEDDED, GENERATED, Tensor, inputs_of
from penstock_rpc.protos.kserve_pb2 import (
    ModelInferRequest,
)

TEXT = "text_input"
TOKENS = "input_ids"
STREAM = "stream"
SAMPLING = "sampling_parameters"
MAX_SAMPLING = 1 << 20
"""Characters of them."""
MAX_CONTROLS = 1 << 18
"""Control characters of an input, each of which is six bytes of JSON."""
MAX_ROWS = 16_384
"""Prompts of token ids."""
MAX_PARAMETERS = 1024
"""Entries of parameters, and of sampling_parameters."""
_CONTROLS = bytes(each for each in range(32) if each not in b"\t\n\r")

_OWN = ("model", "prompt", "input", "stream", "stream_options", "encoding_format")
"""Fields of the body that something else says."""


def _numeric_fields() -> frozenset[str]:
    """Fields of a completion that take numbers or flags, and no text."""
    about: Any = msgspec.inspect.type_info(CompletionRequest)
    numbers = (msgspec.inspect.IntType, msgspec.inspect.FloatType, msgspec.inspect.BoolType)
    found = set()
    for field in about.fields:
        kind = field.type
        kinds = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
        if all(isinstance(each, (*numbers, msgspec.inspect.NoneType)) for each in kinds):
            found.add(field.name)
    return frozenset(found)


_NUMERIC = _numeric_fields()


@dataclass(frozen=True, slots=True)
class InferBody:
    """What a request asks the HTTP API for."""

    path: str
    json: bytes
    streamed: bool


def body_of(message: ModelInferRequest, *, pools: bool, may_stream: bool) -> InferBody:
    """pools: the model computes vectors.  Raises InvalidRequest."""
    found = inputs_of(message)
    known = (TEXT, TOKENS) if pools else (TEXT, TOKENS, STREAM, SAMPLING)
    for name in found:
        if name not in known:
            raise InvalidRequest(
                f"the model has no input {name[:100]!r}; it has {', '.join(known)}",
                param=name[:100],
            )
    _check_outputs(message, EMBEDDED if pools else GENERATED)
    streamed = _flag(found)
    if streamed and not may_stream:
        raise InvalidRequest("ModelInfer does not stream; ModelStreamInfer does", param=STREAM)
    given = _given(found)
    body: dict[str, Any] = {**_parameters(message), **_sampling(found)}
    for name in _OWN:
        if name in body:
            raise InvalidRequest(
                f"{name} is not a parameter; use the request's field or input for it",
                param=name,
            )
    body["model"] = message.model_name
    if pools:
        body |= {"input": given, "encoding_format": "base64"}
    else:
        body |= {"prompt": given, "stream": streamed}
    path = "/v1/embeddings" if pools else "/v1/completions"
    return InferBody(path, msgspec.json.encode(body), streamed)


def _check_outputs(message: ModelInferRequest, known: tuple[str, ...]) -> None:
    for output in message.outputs:
        if output.name not in known:
            raise InvalidRequest(
                f"the model has no output {output.name[:100]!r}; it has {', '.join(known)}",
                param="outputs",
            )


def _given(found: dict[str, Tensor]) -> list[Any]:
    """The prompt: texts, or token ids, or rows of them."""
    if (TEXT in found) == (TOKENS in found):
        raise InvalidRequest(f"give either {TEXT} or {TOKENS} as input", param="inputs")
    if TOKENS in found:
        return _rows(found[TOKENS])
    texts = _texts(TEXT, found[TEXT])
    if not texts:
        raise InvalidRequest(f"{TEXT} is empty", param=TEXT)
    return texts


def _rows(tensor: Tensor) -> list[Any]:
    datatype, shape, ids = tensor
    if not datatype.startswith(("INT", "UINT")):
        raise InvalidRequest(f"{TOKENS} is {datatype}; it must be INT64", param=TOKENS)
    if len(shape) > 2:
        raise InvalidRequest(
            f"{TOKENS} has {len(shape)} dimensions; it must be the token ids of one prompt, or a "
            "row of them for each",
            param=TOKENS,
        )
    if len(shape) < 2 or not ids:
        return list(ids)
    length = shape[1]
    if len(ids) > MAX_ROWS * length:
        raise InvalidRequest(
            f"{TOKENS} has {len(ids) // length} rows; at most {MAX_ROWS} are allowed", param=TOKENS
        )
    return [list(ids[at : at + length]) for at in range(0, len(ids), length)]


def _texts(name: str, tensor: Tensor) -> list[str]:
    datatype, _, values = tensor
    if datatype != "BYTES":
        raise InvalidRequest(f"{name} is {datatype}; it must be BYTES", param=name)
    elements = cast("Sequence[bytes]", values)
    controls = sum(len(each) - len(each.translate(None, _CONTROLS)) for each in elements)
    if controls > MAX_CONTROLS:
        raise InvalidRequest(
            f"{name} has {controls} control characters; at most {MAX_CONTROLS} are allowed",
            param=name,
        )
    try:
        return [each.decode() for each in elements]
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} is not UTF-8", param=name) from None


def _flag(found: dict[str, Tensor]) -> bool:
    if STREAM not in found:
        return False
    datatype, _, values = found[STREAM]
    if datatype != "BOOL" or len(values) != 1:
        raise InvalidRequest(f"{STREAM} must be one BOOL", param=STREAM)
    return bool(values[0])


def _sampling(found: dict[str, Tensor]) -> dict[str, Any]:
    """Fields of /v1/completions, as JSON. Triton's clients send numbers as strings there, too."""
    if SAMPLING not in found:
        return {}
    texts = _texts(SAMPLING, found[SAMPLING])
    if len(texts) == 1:
        if len(texts[0]) > MAX_SAMPLING:
            raise InvalidRequest(
                f"{SAMPLING} has {len(texts[0])} characters; at most {MAX_SAMPLING} are allowed",
                param=SAMPLING,
            )
        TextsAmount().add(texts[0], SAMPLING)
    read: Callable[[str], Any] = msgspec.json.decode
    try:
        fields = read(texts[0]) if len(texts) == 1 else None
    except (msgspec.DecodeError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidRequest(f"{SAMPLING} must be one JSON object", param=SAMPLING)
    _check_count(SAMPLING, len(fields))
    return {name: _number(name, value) for name, value in fields.items()}


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, str) or name not in _NUMERIC:
        return value
    try:
        number = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value
    return number if isinstance(number, (bool, int, float)) else value


def _check_count(name: str, count: int) -> None:
    if count > MAX_PARAMETERS:
        raise InvalidRequest(
            f"{name} has {count} entries; at most {MAX_PARAMETERS} are allowed", param=name
        )


def _parameters(message: ModelInferRequest) -> dict[str, Any]:
    _check_count("parameters", len(message.parameters))
    found: dict[str, Any] = {}
    for name, value in message.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is None or name.startswith("triton_"):
            continue
        given = getattr(value, kind)
        if isinstance(given, float) and not math.isfinite(given):
            # JSON would have null, which is the default.
            raise InvalidRequest(f"{name[:100]} is {given}; it must be finite", param=name[:100])
        found[name] = given
    return found
