"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.errors import model_not_found
from penstock_gateway.operations import Operation, OperationRoute
from penstock_gateway.service import Service


class Model(msgspec.Struct, tag_field="object", tag="model"):
    """created: Unix time of the engine's start, seconds.  max_model_len: tokens, in and out."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "penstock"


class ModelList(msgspec.Struct, tag_field="object", tag="list"):
    data: list[Model]


LIST = Operation(
    method="GET",
    path="/v1/models",
    summary="The models that are served",
    tag="models",
    reply=ModelList,
)
# Hub ids hold a slash.
ONE = Operation(
    method="GET",
    path="/v1/models/{name:path}",
    summary="One model",
    tag="models",
    reply=Model,
    statuses=(404,),
)


def routes(service: Service) -> list[OperationRoute]:
    """Both routes; 503 while there is no engine core."""

    async def models(request: Request) -> Response:
        return _json(ModelList([_served(service)]))

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        served = _served(service)
        if name != served.id:
            raise model_not_found(name, served.id)
        return _json(served)

    return [LIST.route(models), ONE.route(model)]


def _served(service: Service) -> Model:
    welcome = service.engine().welcome
    return Model(welcome.model, welcome.created, welcome.limits.max_model_len)


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
