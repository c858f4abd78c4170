"""POST /v1/embeddings, and vectors as JSON, a few numbers at a time: all of a large reply at once
would hold up others."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from penstock.client.pool_request import PoolResult
from penstock.protocol.common import Pooling
from penstock.request.pooling_params import check_dimensions
from penstock_gateway.generate.chunked_reply import JsonList, Pace, Splices, paced
from penstock_gateway.generate.reply import encoder
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of, vector_inputs
from penstock_gateway.pooling.fields import InputField, PoolUsage, VectorFields
from penstock_gateway.service import Service

NUMBERS = 4096
"""Numbers that are written at once: a third of a millisecond."""
BASE64_BYTES = 3 << 16
"""Bytes that are written at once; of three each four letters are made, without a rest."""
NUMBERS_PER_TOKEN = 64
"""Take as long to write as a token with its log-probabilities."""


async def vector_list(
    results: Sequence[PoolResult],
    splices: Splices,
    shown: Callable[[int, Any], object],
    *,
    base64: bool = False,
) -> Any:
    """What stands in a reply for the list of these vectors.

    splices: of the reply.  shown: an element of the list, of its index and its vector.
    base64: of little-endian float32, instead of numbers.
    """
    numbers = sum(len(result.vectors.data) for result in results) // 4
    async with paced(numbers // NUMBERS_PER_TOKEN) as pace:
        made = JsonList()
        for index, result in enumerate(results):
            vector = _in_base64(result, pace) if base64 else _in_numbers(result, pace)
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


async def _in_base64(result: PoolResult, pace: Pace) -> AsyncIterator[bytes]:
    data = memoryview(result.vectors.data)
    yield b'"'
    for at in range(0, len(data), BASE64_BYTES):
        yield b64encode(data[at : at + BASE64_BYTES])
        await pace.rest()
    yield b'"'


class EmbeddingRequest(VectorFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """input: a text, a list of texts, a list of token ids, or a list of such lists."""

    input: InputField = None


class EmbeddingData(msgspec.Struct, frozen=True, tag_field="object", tag="embedding"):
    """embedding: numbers, or the base64 of little-endian float32."""

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

    async def answer(self, request: EmbeddingRequest, call: Call) -> EmbeddingReply:
        inputs = await vector_inputs(request.input, request.messages, call, request)
        asked = Pooling(
            "embed",
            dimensions=checked_dimensions(request.dimensions, call),
            normalize=request.normalize,
        )
        results = await call.pool(inputs, asked)
        base64 = request.encoding_format == "base64"
        data = await vector_list(results, call.splices, EmbeddingData, base64=base64)
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
