"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.generation_config import sampling_defaults
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.keys.caller import current
from penstock_gateway.service import Service


class ModelCard(msgspec.Struct, tag_field="object", tag="model"):
    """created: Unix time of the engine's start, seconds.  max_model_len: tokens, in and out.
    default_sampling_params: what a request gets that leaves these fields out; where it is silent
    too, OpenAI's defaults."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "penstock"
    default_sampling_params: dict[str, float | int] = {}


class ModelList(msgspec.Struct, tag_field="object", tag="list"):
    data: list[ModelCard]


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
    reply=ModelCard,
    statuses=(404,),
)


def routes(service: Service) -> list[OperationRoute]:
    """Both routes; 503 while there is no engine core."""

    async def models(request: Request) -> Response:
        served = _served(service)
        # What the key may not use isn't there for it.
        return _json(ModelList([served] if current.get().may_use(served.id) else []))

    async def model(request: Request) -> Response:
        service.check_model(request.path_params["name"])
        return _json(_served(service))

    return [LIST.route(models), ONE.route(model)]


def _served(service: Service) -> ModelCard:
    welcome = service.engine().welcome
    return ModelCard(
        welcome.model,
        welcome.created,
        welcome.limits.max_model_len,
        default_sampling_params=sampling_defaults(welcome.generation),
    )


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
