"""GET /v1/uptime: how long this gateway has run, and how many requests it has open."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.service import Service


class Uptime(msgspec.Struct):
    """What a gateway says of itself."""

    seconds: float
    open_requests: int


OPERATION = Operation(
    method="GET",
    path="/v1/uptime",
    summary="How long this gateway has run",
    tag="operations",
    reply=Uptime,
    access="admin",  # who may call it once there are API keys
)


def routes(service: Service) -> list[OperationRoute]:
    """Called once, when the gateway starts."""

    async def uptime(request: Request) -> Response:
        told = Uptime(time.monotonic() - service.started, service.open_requests)
        return Response(msgspec.json.encode(told), media_type="application/json")

    return [OPERATION.route(uptime)]
