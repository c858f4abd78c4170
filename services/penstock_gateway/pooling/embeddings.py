"""POST /v1/embeddings, and vectors as JSON, a few numbers at a time: all of a large reply at once
would hold up others."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.client.pool_request import PoolResult
from penstock.errors import InvalidRequest
from penstock.protocol.common import Pooling
from penstock.request.pooling_params import check_dimensions
from penstock_gateway.generate.chunked_reply import JsonList, Pace, Splices, paced
from penstock_gateway.generate.reply import encoder
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.endpoint import (
    BytesReply,
    Call,
    PoolEndpoint,
    usage_of,
    vector_inputs,
)
from penstock_gateway.pooling.fields import EmbedDtype, InputField, PoolUsage, Text, VectorFields
from penstock_gateway.pooling.prompts import prompt_of, with_prompt
from penstock_gateway.service import Service

NUMBERS = 4096
"""Numbers that are written at once: a third of a millisecond."""
BASE64_BYTES = 3 << 16
"""Bytes of float32 that are written at once: also of half of them base64 is whole letters."""
MAX_METADATA = 16_384
"""Bytes of the header that describes vectors in bytes: clients and proxies take no long ones."""
NUMBERS_PER_TOKEN = 64
"""Take as long to write as a token with its log-probabilities."""


class Packing(NamedTuple):
    """How vectors are written as bytes."""

    dtype: EmbedDtype = "float32"
    endianness: Literal["little", "big"] = "little"

    @classmethod
    def of(cls, request: VectorFields) -> Packing:
        """What a request asks for. The native order is that of all served machines: little."""
        big = request.endianness == "big"
        return cls(request.embed_dtype or "float32", "big" if big else "little")

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return 4 if self.dtype == "float32" else 2

    def packed(self, data: memoryview) -> bytes | memoryview:
        """data: little-endian float32.  The nearest numbers of the type, ties to even; float16 of
        what is too large is infinite."""
        if self == Packing():
            return data
        import numpy as np  # Here: gateways whose clients never ask for this do without it.

        numbers: Any = np.frombuffer(data, "<f4")
        if self.dtype == "float16":
            with np.errstate(over="ignore"):
                numbers = numbers.astype("<f2")
        elif self.dtype == "bfloat16":
            bits = numbers.view("<u4")
            nearest = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
            numbers = np.where(np.isnan(numbers), 0x7FC0, nearest).astype("<u2")
        return (numbers.byteswap() if self.endianness == "big" else numbers).tobytes()


def base64_of(request: VectorFields) -> Packing | None:
    """How the vectors of a JSON reply are packed; None: they are numbers."""
    return Packing.of(request) if request.encoding_format == "base64" else None


class VectorPlace(msgspec.Struct, frozen=True):
    """Where a vector is in a reply of bytes: from start to before end."""

    index: int
    embed_dtype: EmbedDtype
    endianness: Literal["little", "big"]
    start: int
    end: int
    shape: tuple[int, ...]


class VectorMetadata(msgspec.Struct, frozen=True):
    """The header `metadata` of a reply of bytes."""

    id: str
    created: int
    model: str
    data: list[VectorPlace]
    usage: PoolUsage


async def vector_bytes(
    results: Sequence[PoolResult], call: Call, request: VectorFields
) -> BytesReply | None:
    """The reply of a request for bytes; None: it asks for JSON. Raises InvalidRequest for more
    vectors than a header describes."""
    if request.encoding_format not in ("bytes", "bytes_only"):
        return None
    packing, places, end = Packing.of(request), [], 0
    for index, result in enumerate(results):
        start, end = end, end + len(result.vectors.data) // 4 * packing.size
        shape = tuple(result.vectors.shape)
        places.append(VectorPlace(index, packing.dtype, packing.endianness, start, end, shape))
    headers = []
    if request.encoding_format == "bytes":
        metadata = VectorMetadata(call.id, call.created, call.model, places, usage_of(results))
        text = json.dumps(msgspec.to_builtins(metadata), separators=(",", ":"))
        if len(text) > MAX_METADATA:
            raise InvalidRequest(
                f"encoding_format is bytes, and the header that describes {len(results)} vectors "
                f"would have {len(text)} bytes; at most {MAX_METADATA} are sent: bytes_only has no "
                "such header, and base64 takes any number",
                param="encoding_format",
            )
        headers.append(("metadata", text))
    pieces: list[bytes] = []
    async with paced(end // packing.size // NUMBERS_PER_TOKEN) as pace:
        for result in results:
            data = memoryview(result.vectors.data)
            for at in range(0, len(data), BASE64_BYTES):
                pieces.append(bytes(packing.packed(data[at : at + BASE64_BYTES])))
                await pace.rest()
    return BytesReply(pieces, headers)


async def vector_list(
    results: Sequence[PoolResult],
    splices: Splices,
    shown: Callable[[int, Any], object],
    *,
    base64: Packing | None = None,
) -> Any:
    """What stands in a reply for the list of these vectors.

    splices: of the reply.  shown: an element of the list, of its index and its vector.
    base64: of vectors so packed; None: they are numbers.
    """
    numbers = sum(len(result.vectors.data) for result in results) // 4
    async with paced(numbers // NUMBERS_PER_TOKEN) as pace:
        made = JsonList()
        for index, result in enumerate(results):
            vector = _in_base64(result, base64, pace) if base64 else _in_numbers(result, pace)
            inner = Splices()
            element = shown(index, inner.put([piece async for piece in vector]))
            made.add_written(inner.spliced(encoder.encode(element)))
            await pace.rest()
    return splices.put(made.pieces())


async def _in_numbers(result: PoolResult, pace: Pace) -> AsyncIterator[bytes]:
    """Yields a vector as a list of numbers, or a list for each row."""
    if len(result.vectors.shape) == 1:
        for piece in await _list(result, 0, result.size, pace):
            yield piece
        return
    rows, size = result.vectors.shape[0], result.size
    made = JsonList()
    for row in range(rows):
        made.add_written(await _list(result, row * size, (row + 1) * size, pace))
    for piece in made.pieces():
        yield piece


async def _list(result: PoolResult, begin: int, end: int, pace: Pace) -> list[bytes]:
    made = JsonList()
    for at in range(begin, end, NUMBERS):
        made.add(result.numbers(at, min(end, at + NUMBERS)))
        await pace.rest()
    return made.pieces()


async def _in_base64(result: PoolResult, packing: Packing, pace: Pace) -> AsyncIterator[bytes]:
    data = memoryview(result.vectors.data)
    yield b'"'
    for at in range(0, len(data), BASE64_BYTES):
        yield b64encode(packing.packed(data[at : at + BASE64_BYTES]))
        await pace.rest()
    yield b'"'


class EmbeddingRequest(VectorFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """input: a text, a list of token ids, or a list of texts and of such lists.  prompt_name: of a
    prompt that the model's files name, which goes in front of texts.  task, input_type: Jina's, and
    NIM's and Cohere's: the prompt of that purpose, where the model has one."""

    input: InputField = None
    prompt_name: Text = None
    task: Text = None
    input_type: Text = None


class EmbeddingData(msgspec.Struct, frozen=True, tag_field="object", tag="embedding"):
    """embedding: numbers, or base64 of what the request says."""

    index: int
    embedding: list[float] | str


class EmbeddingReply(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """created: Unix time, seconds."""

    id: str
    created: int
    model: str
    data: list[EmbeddingData]
    usage: PoolUsage


class Embeddings(PoolEndpoint[EmbeddingRequest]):
    request_type = EmbeddingRequest
    id_prefix = "embd"

    async def answer(self, request: EmbeddingRequest, call: Call) -> EmbeddingReply | BytesReply:
        given = with_prompt(prompt_of(request, call), request.input)
        inputs = await vector_inputs(given, request.messages, call, request)
        asked = Pooling(
            "embed",
            dimensions=checked_dimensions(request.dimensions, call),
            normalize=request.activates,
        )
        results = await call.pool(inputs, asked)
        if (raw := await vector_bytes(results, call, request)) is not None:
            return raw
        data = await vector_list(results, call.splices, EmbeddingData, base64=base64_of(request))
        return EmbeddingReply(call.id, call.created, call.model, data, usage_of(results))


def checked_dimensions(asked: int | None, call: Call) -> int | None:
    """Raises InvalidRequest for a length that the model's vectors can't be cut to."""
    pooling = call.engine.welcome.pooling
    if pooling is not None:
        check_dimensions(asked, pooling)
    return asked


OPERATION = posting(
    "/v1/embeddings",
    "Embed texts",
    EmbeddingRequest,
    EmbeddingReply,
    tag="pooling",
    headers=("x-deadline-ms",),
    traced_as="embeddings",
)


def routes(service: Service) -> list[OperationRoute]:
    return [OPERATION.route(Embeddings(service))]
