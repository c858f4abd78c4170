"""Tensors of KServe's protocol, as typed contents or raw, and replies of the HTTP API as
ModelInferResponses."""

from __future__ import annotations

import struct
from array import array
from base64 import b64decode
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import msgspec

from penstock.errors import InvalidRequest
from penstock_rpc.protos.kserve_pb2 import ModelInferRequest, ModelInferResponse

Values = Sequence[bytes] | Sequence[int] | Sequence[float] | Sequence[bool]


class Tensor(NamedTuple):
    """values: in C order."""

    datatype: str
    shape: list[int]
    values: Values


_CONTENTS = {
    "BYTES": "bytes_contents",
    "BOOL": "bool_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
}
_FORMATS = {"BOOL": "?", "INT32": "i", "INT64": "q", "UINT32": "I", "UINT64": "Q", "FP32": "f"}
"""`struct` codes of an element, by data type, for raw contents, which are little-endian."""
_LENGTH = struct.Struct("<I")
MOST_NUMBERS, MOST_STRINGS = 524_288, 16_384
"""Bounds of raw contents, which so are unpacked in some 10 ms."""


def inputs_of(message: ModelInferRequest) -> dict[str, Tensor]:
    """The inputs by their names. Raises InvalidRequest."""
    raw = list(message.raw_input_contents)
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest(
            f"there are {len(message.inputs)} inputs and {len(raw)} raw_input_contents; there must "
            "be one for each input, or none",
            param="raw_input_contents",
        )
    found: dict[str, Tensor] = {}
    for place, tensor in enumerate(message.inputs):
        name, datatype = tensor.name, tensor.datatype
        if name in found:
            raise InvalidRequest(f"the input {name[:100]!r} appears twice", param="inputs")
        if datatype not in _CONTENTS:
            raise InvalidRequest(
                f"the input {name[:100]!r} has the datatype {datatype[:20]!r}; allowed: "
                f"{', '.join(_CONTENTS)}",
                param=name[:100],
            )
        values: Values
        if raw:
            values = _unpacked(name, datatype, raw[place])
        else:
            values = list(getattr(tensor.contents, _CONTENTS[datatype]))
        _check_shape(name, tensor.shape, len(values))
        found[name] = Tensor(datatype, list(tensor.shape), values)
    return found


def add_strings(
    reply: ModelInferResponse, name: str, values: Sequence[bytes], *, raw: bool
) -> None:
    """raw: as the request had its inputs."""
    output = reply.outputs.add(name=name, datatype="BYTES", shape=[len(values)])
    if raw:
        packed = b"".join(_LENGTH.pack(len(each)) + each for each in values)
        reply.raw_output_contents.append(packed)
    else:
        output.contents.bytes_contents.extend(values)


def add_rows(
    reply: ModelInferResponse, name: str, rows: Sequence[array[float]], *, raw: bool
) -> None:
    """rows: float32, all of one length."""
    shape = [len(rows), len(rows[0]) if rows else 0]
    output = reply.outputs.add(name=name, datatype="FP32", shape=shape)
    if raw:
        reply.raw_output_contents.append(b"".join(row.tobytes() for row in rows))
    else:
        for row in rows:
            output.contents.fp32_contents.extend(row)


def _unpacked(name: str, datatype: str, data: bytes) -> Values:
    if datatype == "BYTES":
        return _strings(name, data)
    form = struct.Struct("<" + _FORMATS[datatype])
    if len(data) % form.size:
        raise InvalidRequest(
            f"the raw contents of {name[:100]!r} have {len(data)} bytes, not a multiple of "
            f"{form.size}, the size of {datatype}",
            param=name[:100],
        )
    count = len(data) // form.size
    if count > MOST_NUMBERS:
        raise _too_many(name, MOST_NUMBERS)
    return struct.unpack(f"<{count}{_FORMATS[datatype]}", data)


def _strings(name: str, data: bytes) -> list[bytes]:
    """Each has its length before it."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + _LENGTH.size
        length = _LENGTH.unpack_from(data, at)[0] if end <= len(data) else len(data)
        if end + length > len(data):
            raise InvalidRequest(
                f"the raw contents of {name[:100]!r} end within an element; an element of BYTES is "
                "its length (4 bytes, little-endian) followed by its bytes",
                param=name[:100],
            )
        found.append(data[end : end + length])
        if len(found) > MOST_STRINGS:
            raise _too_many(name, MOST_STRINGS)
        at = end + length
    return found


def _too_many(name: str, most: int) -> InvalidRequest:
    return InvalidRequest(
        f"the raw contents of {name[:100]!r} have more than {most} elements, the maximum",
        param=name[:100],
    )


def _check_shape(name: str, shape: Sequence[int], count: int) -> None:
    if any(length < 0 for length in shape) or len(shape) > 8 or prod(shape) != count:
        raise InvalidRequest(
            f"the input {name[:100]!r} has the shape {list(shape)[:8]} and {count} elements",
            param=name[:100],
        )


GENERATED = ("text_output", "finish_reason")
EMBEDDED = ("embedding",)
"""Outputs of models that generate, and of those that embed."""
FINAL = "triton_final_response"
INDEX = "index"
"""The parameter that says which sequence a streamed response goes on with."""


class _Choice(msgspec.Struct):
    index: int
    text: str
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    model: str


class _Vector(msgspec.Struct):
    index: int
    embedding: str


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    model: str


_completions = msgspec.json.Decoder(_Completion)
_vectors = msgspec.json.Decoder(_Vectors)


class InferFormat:
    """Writes the responses to one request."""

    def __init__(self, request: ModelInferRequest) -> None:
        self._id = request.id
        self._model = request.model_name
        self._wanted = {output.name for output in request.outputs} or {*GENERATED, *EMBEDDED}
        # Typed contents only where the request has them.
        self._raw = bool(request.raw_input_contents)

    def text(self, completion: bytes) -> ModelInferResponse:
        """The reply to a completion, given as JSON."""
        return self._of(_completions.decode(completion))

    def chunk(self, chunk: bytes) -> ModelInferResponse:
        """The reply to a completion's chunk, given as JSON, which has one choice."""
        found = _completions.decode(chunk)
        reply = self._of(found)
        for choice in found.choices[:1]:
            reply.parameters[INDEX].int64_param = choice.index
        return reply

    def _of(self, found: _Completion) -> ModelInferResponse:
        choices = sorted(found.choices, key=lambda choice: choice.index)
        reply = self._reply(found.model)
        texts = [choice.text.encode() for choice in choices]
        reasons = [(choice.finish_reason or "").encode() for choice in choices]
        for name, values in (("text_output", texts), ("finish_reason", reasons)):
            if name in self._wanted:
                add_strings(reply, name, values, raw=self._raw)
        return reply

    def vectors(self, embeddings: bytes) -> ModelInferResponse:
        """The reply to embeddings, given as JSON, in base64: as many rows as texts."""
        found = _vectors.decode(embeddings)
        rows = [array("f", b64decode(each.embedding)) for each in found.data]
        reply = self._reply(found.model)
        add_rows(reply, "embedding", rows, raw=self._raw)
        return reply

    def final(self) -> ModelInferResponse:
        """What ends a request's responses in a stream, as Triton has it."""
        reply = self._reply(self._model)
        reply.parameters[FINAL].bool_param = True
        return reply

    def _reply(self, model: str) -> ModelInferResponse:
        return ModelInferResponse(model_name=model, model_version="1", id=self._id)
