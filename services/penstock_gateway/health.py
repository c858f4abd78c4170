"""GET /health/live, /health/ready, and /health for ready, as vLLM has it."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from penstock_gateway.service import Service


class Health(msgspec.Struct, frozen=True):
    """ok: whether the answer is 200.  reason: why not, else empty."""

    ok: bool
    reason: str = ""


def router(service: Service) -> APIRouter:
    """Liveness says that the event loop turns; readiness, that a request would be served now."""
    routes = APIRouter(tags=["health"])

    async def live() -> Response:
        return _reply(None)

    async def ready() -> Response:
        return _reply(service.unready_reason())

    for path, answer, summary in (
        ("/health/live", live, "The process is alive"),
        ("/health/ready", ready, "Requests are served now"),
        ("/health", ready, "Same as /health/ready"),
    ):
        routes.add_api_route(path, answer, methods=["GET"], summary=summary)
        # Load balancers ask with either method.
        routes.add_api_route(path, answer, methods=["HEAD"], include_in_schema=False)
    return routes


def _reply(reason: str | None) -> Response:
    body = msgspec.json.encode(Health(ok=reason is None, reason=reason or ""))
    headers = None if reason is None else {"retry-after": "1"}
    return Response(
        body, 200 if reason is None else 503, headers=headers, media_type="application/json"
    )
