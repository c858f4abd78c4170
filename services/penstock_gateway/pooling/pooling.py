"""POST /pooling: what the model gives, without a meaning given to it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.client.pool_request import pooling_model
from penstock.errors import InvalidRequest
from penstock.protocol.common import Pooling, PoolingTask
from penstock.request.pooling_params import check_input_type, default_task
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.embeddings import (
    base64_of,
    checked_dimensions,
    vector_bytes,
    vector_list,
)
from penstock_gateway.pooling.endpoint import (
    BytesReply,
    Call,
    PoolEndpoint,
    usage_of,
    vector_inputs,
)
from penstock_gateway.pooling.fields import (
    InputField,
    PoolUsage,
    VectorFields,
    check_numbers,
)
from penstock_gateway.pooling.sparse import NamedWeight, named_weights
from penstock_gateway.service import Service


class PoolingRequest(VectorFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """task: embed, token_embed (each token's vector), classify, token_classify (each token's
    classes) or embed_sparse (weights of the vocabulary's tokens); absent: token_embed of a model
    for embeddings that can, else what it is for.  input_type: of a model for late interaction,
    absent: document."""

    input: InputField = None
    task: PoolingTask | None = None
    input_type: Literal["query", "document"] | None = None


class PooledData(msgspec.Struct, frozen=True, tag_field="object", tag="pooling"):
    """data: numbers, rows of numbers, weights of tokens, or base64 of what the request says."""

    index: int
    data: list[float | list[float] | NamedWeight] | str


class PoolingReply(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    id: str
    created: int
    model: str
    data: list[PooledData]
    usage: PoolUsage


class PoolingEndpoint(PoolEndpoint[PoolingRequest]):
    request_type = PoolingRequest
    id_prefix = "pool"

    async def answer(self, request: PoolingRequest, call: Call) -> PoolingReply | BytesReply:
        role = request.input_type
        check_input_type(role, pooling_model(call.engine.welcome))
        inputs = await vector_inputs(
            request.input, request.messages, call, request, role or "document"
        )
        task = request.task or default_task(call.engine.welcome.pooling_tasks)
        embeds = task in ("embed", "token_embed")
        asked = Pooling(
            task,
            dimensions=checked_dimensions(request.dimensions, call),
            normalize=request.activates if embeds else request.normalize,
            activate=None if embeds else request.use_activation,
        )
        if asked.task == "embed_sparse" and request.encoding_format not in (None, "float"):
            raise InvalidRequest(
                f"encoding_format is {request.encoding_format}; sparse vectors are written as "
                "float",
                param="encoding_format",
                code="unsupported_value",
            )
        size = pooling_model(call.engine.welcome).row_size(asked.task)
        size = min(size, asked.dimensions or size)
        check_numbers(sum(len(each.prompt_token_ids) for each in inputs), size)
        results = await call.pool(inputs, asked)
        if asked.task == "embed_sparse":
            weights: Any = await named_weights(results, call, PooledData)
            return PoolingReply(call.id, call.created, call.model, weights, usage_of(results))
        if (raw := await vector_bytes(results, call, request)) is not None:
            return raw
        data = await vector_list(results, call.splices, PooledData, base64=base64_of(request))
        return PoolingReply(call.id, call.created, call.model, data, usage_of(results))


OPERATION = posting(
    "/pooling",
    "Create pooled vectors",
    PoolingRequest,
    PoolingReply,
    tag="pooling",
    headers=("x-deadline-ms",),
)


def routes(service: Service) -> list[OperationRoute]:
    return [OPERATION.route(PoolingEndpoint(service))]
