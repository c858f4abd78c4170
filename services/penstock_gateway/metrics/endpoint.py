"""GET /metrics: on the main port, or with API keys on the admin port."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.metrics.families import CONTENT_TYPE, renderer
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.keys.caller import forbidden
from penstock_gateway.metrics.collector import Collector
from penstock_gateway.plugged.metrics import PluggedMetrics
from penstock_gateway.service import Service

OPERATION = Operation(
    method="GET",
    path="/metrics",
    summary="Metrics for Prometheus, with vLLM's names",
    tag="operations",
    access="admin",
    media_type="text/plain",
)


def routes(service: Service) -> list[OperationRoute]:
    """The main port's."""

    async def elsewhere(request: Request) -> Response:
        raise forbidden("with API keys, /metrics is served on the admin port (--admin-port)")

    return [OPERATION.route(elsewhere)] if service.ring is not None else admin_routes(service)


def admin_routes(service: Service) -> list[OperationRoute]:
    """The admin port's."""
    render = renderer(PluggedMetrics(Collector(service).collect, service).collect)

    async def metrics(request: Request) -> Response:
        if service.store is not None:
            await service.store.stock.look()
        return Response(render(), media_type=CONTENT_TYPE)

    return [OPERATION.route(metrics)]
