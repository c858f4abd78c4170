"""Tensors of KServe's protocol: as typed contents, or raw."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from penstock.errors import InvalidRequest
from penstock_gateway.rpc.protos.kserve_pb2 import ModelInferRequest, ModelInferResponse

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
"""In raw contents: so they are unpacked in some 10 ms."""


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
