"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from penstock_gateway.errors import model_not_found
from penstock_gateway.service import Service


class Model(msgspec.Struct, tag_field="object", tag="model"):
    """created: Unix time of the engine's start, seconds.  max_model_len: tokens, in and out."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "penstock"


class ModelList(msgspec.Struct, tag_field="object", tag="list"):
    data: list[Model]


def router(service: Service) -> APIRouter:
    """Both routes; 503 while there is no engine core."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    @routes.get("", summary="The models that are served")
    async def models() -> Response:
        return _json(ModelList([_served(service)]))

    # Hub ids hold a slash.
    @routes.get("/{name:path}", summary="One model")
    async def model(name: str) -> Response:
        served = _served(service)
        if name != served.id:
            raise model_not_found(name, served.id)
        return _json(served)

    return routes


def _served(service: Service) -> Model:
    welcome = service.engine().welcome
    return Model(welcome.model, welcome.created, welcome.limits.max_model_len)


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
