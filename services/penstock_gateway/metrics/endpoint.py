"""GET /metrics: on the main port, or where there are API keys, on the admin port."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.keys.caller import forbidden
from penstock_gateway.metrics.collector import Collector
from penstock_gateway.operations import Operation, OperationRoute
from penstock_gateway.service import Service

OPERATION = Operation(
    method="GET",
    path="/metrics",
    summary="Counts and times for Prometheus, under vLLM's names",
    tag="operations",
    access="admin",
    media_type="text/plain",
)


def routes(service: Service) -> list[OperationRoute]:
    """The main port's."""

    async def elsewhere(request: Request) -> Response:
        raise forbidden("where there are API keys, /metrics is on the admin port: --admin-port")

    return [OPERATION.route(elsewhere)] if service.ring is not None else admin_routes(service)


def admin_routes(service: Service) -> list[OperationRoute]:
    """The admin port's."""
    registry = CollectorRegistry()
    registry.register(Collector(service))

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return [OPERATION.route(metrics)]
