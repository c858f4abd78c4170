"""GET /health/live, /health/ready, and for ready also /health, as in vLLM, and /ping, as
SageMaker asks."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.metrics.health import Health, answer
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.service import Service


def operation(path: str, summary: str) -> Operation:
    """A GET operation without a key, as load balancers have none."""
    return Operation(
        method="GET", path=path, summary=summary, tag="health", reply=Health, access="open"
    )


LIVE = operation("/health/live", "The process is alive")
READY = operation("/health/ready", "Ready to serve requests")
HEALTH = operation("/health", "Same as /health/ready")
PING = operation("/ping", "Same as /health/ready (SageMaker)")


def routes(service: Service) -> list[OperationRoute]:
    """Liveness says that the event loop turns; readiness, that a request would be served now."""

    async def live(request: Request) -> Response:
        return _reply(None)

    async def ready(request: Request) -> Response:
        return _reply(service.unready_reason())

    return [LIVE.route(live), READY.route(ready), HEALTH.route(ready), PING.route(ready)]


def _reply(reason: str | None) -> Response:
    status, body = answer(reason)
    headers = None if reason is None else {"retry-after": "1"}
    return Response(body, status, headers=headers, media_type="application/json")
