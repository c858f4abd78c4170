"""POST /v1/embeddings."""

from __future__ import annotations

import msgspec

from penstock.protocol.common import Pooling
from penstock.request.pooling_params import check_dimensions
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of, vector_inputs
from penstock_gateway.pooling.fields import PoolUsage, VectorFields
from penstock_gateway.pooling.inputs import InputField
from penstock_gateway.pooling.vectors import vector_list
from penstock_gateway.service import Service


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
        special = request.add_special_tokens is not False
        inputs = await vector_inputs(request.input, request.messages, call, add_special=special)
        asked = Pooling(
            "embed", dimensions=checked_dimensions(request, call), normalize=request.normalize
        )
        results = await call.pool(inputs, asked)
        base64 = request.encoding_format == "base64"
        data = await vector_list(results, call.splices, EmbeddingData, base64=base64)
        return EmbeddingReply(call.id, call.created, call.model, data, usage_of(results))


def checked_dimensions(request: VectorFields, call: Call) -> int | None:
    """Raises InvalidRequest for a length that the model's vectors can't be cut to."""
    pooling = call.engine.welcome.pooling
    if pooling is not None:
        check_dimensions(request.dimensions, pooling)
    return request.dimensions


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
