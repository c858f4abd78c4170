"""POST /classify."""

from __future__ import annotations

import msgspec

from penstock.client.pool_request import check_task
from penstock.protocol.common import Pooling
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of
from penstock_gateway.pooling.fields import Flag, InputField, PoolFields, PoolUsage, inputs_of
from penstock_gateway.service import Service


class ClassifyRequest(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """use_activation: false gives the head's own numbers."""

    input: InputField = None
    use_activation: Flag = None
    add_special_tokens: Flag = None


class Class(msgspec.Struct, frozen=True):
    """label: the likeliest.  probs: of all, in the model's order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyReply(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    id: str
    created: int
    model: str
    data: list[Class]
    usage: PoolUsage


class Classify(PoolEndpoint[ClassifyRequest]):
    request_type = ClassifyRequest
    id_prefix = "classify"

    async def answer(self, request: ClassifyRequest, call: Call) -> ClassifyReply:
        welcome = call.engine.welcome
        check_task("classify", welcome)
        given = inputs_of(request.input)
        inputs = await call.read(given, add_special=request.add_special_tokens is not False)
        results = await call.pool(inputs, Pooling("classify", activate=request.use_activation))
        labels = welcome.pooling.labels if welcome.pooling is not None else ()
        data = []
        for index, result in enumerate(results):
            probs = result.values()
            best = max(range(len(probs)), key=probs.__getitem__)
            data.append(Class(index, labels[best], probs, len(probs)))
        return ClassifyReply(call.id, call.created, call.model, data, usage_of(results))


OPERATION = posting(
    "/classify",
    "Classify texts",
    ClassifyRequest,
    ClassifyReply,
    tag="pooling",
    headers=("x-deadline-ms",),
)


def routes(service: Service) -> list[OperationRoute]:
    return [OPERATION.route(Classify(service))]
