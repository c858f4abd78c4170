"""From a ModelInferRequest to a body of the HTTP API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.rpc.kserve.infer_reply import EMBEDDED, GENERATED
from penstock_gateway.rpc.kserve.tensors import Values, inputs_of
from penstock_gateway.rpc.protos.kserve_pb2 import ModelInferRequest

TEXT = "text_input"
TOKENS = "input_ids"
STREAM = "stream"
SAMPLING = "sampling_parameters"

_OWN = ("model", "prompt", "input", "stream", "stream_options", "encoding_format")
"""Fields of the body that something else says."""


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
                f"{name} is no parameter here; the request has a field or an input for it",
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


def _given(found: dict[str, tuple[str, Values]]) -> str | list[Any]:
    """The prompt: one text, or several, or token ids."""
    if (TEXT in found) == (TOKENS in found):
        raise InvalidRequest(f"give one of the inputs {TEXT} and {TOKENS}", param="inputs")
    if TOKENS in found:
        datatype, ids = found[TOKENS]
        if not datatype.startswith(("INT", "UINT")):
            raise InvalidRequest(f"{TOKENS} is {datatype}; it must be INT64", param=TOKENS)
        return list(ids)
    texts = _texts(TEXT, found[TEXT])
    if not texts:
        raise InvalidRequest(f"{TEXT} is empty", param=TEXT)
    return texts


def _texts(name: str, tensor: tuple[str, Values]) -> list[str]:
    datatype, values = tensor
    if datatype != "BYTES":
        raise InvalidRequest(f"{name} is {datatype}; it must be BYTES", param=name)
    try:
        return [value.decode() for value in values]  # type: ignore[union-attr]
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} is no UTF-8", param=name) from None


def _flag(found: dict[str, tuple[str, Values]]) -> bool:
    if STREAM not in found:
        return False
    datatype, values = found[STREAM]
    if datatype != "BOOL" or len(values) != 1:
        raise InvalidRequest(f"{STREAM} must be one BOOL", param=STREAM)
    return bool(values[0])


def _sampling(found: dict[str, tuple[str, Values]]) -> dict[str, Any]:
    """Fields of /v1/completions, as JSON. Triton's clients send numbers as strings there, too."""
    if SAMPLING not in found:
        return {}
    texts = _texts(SAMPLING, found[SAMPLING])
    read: Callable[[str], Any] = msgspec.json.decode
    try:
        fields = read(texts[0]) if len(texts) == 1 else None
    except msgspec.DecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise InvalidRequest(f"{SAMPLING} must be one JSON object", param=SAMPLING)
    return {name: _number(value) for name, value in fields.items()}


def _number(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        number = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
    return number if isinstance(number, (bool, int, float)) else value


def _parameters(message: ModelInferRequest) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in message.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None and not name.startswith("triton_"):
            found[name] = getattr(value, kind)
    return found
