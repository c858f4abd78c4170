"""The ASGI application."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from penstock.config import GatewayConfig
from penstock_gateway import health, openapi, status, version
from penstock_gateway.boundary import Boundary, not_found
from penstock_gateway.errors import HTTPError
from penstock_gateway.openai import chat_completions, completions, models
from penstock_gateway.operations import OperationRoute
from penstock_gateway.pooling import classify, embeddings, pooling, rerank, score
from penstock_gateway.service import Patience, Service

if TYPE_CHECKING:
    from penstock.client import EngineClient

ENDPOINTS: tuple[Callable[[Service], list[OperationRoute]], ...] = (
    chat_completions.routes,
    completions.routes,
    models.routes,
    embeddings.routes,
    pooling.routes,
    score.routes,
    rerank.routes,
    classify.routes,
    health.routes,
    status.routes,
    version.routes,
)
"""Where all routes come from: a new endpoint is a line here."""


def create_app(
    client: EngineClient, config: GatewayConfig, *, patience: Patience | None = None
) -> Starlette:
    """A gateway over `client`, which the caller starts and closes. `app.state.service` is what
    its endpoints share."""
    service = Service(client, config, patience or Patience())
    routes = [route for made_by in ENDPOINTS for route in made_by(service)]
    routes.append(openapi.route([route.operation for route in routes]))
    app = Starlette(routes=routes, exception_handlers={HTTPException: _routing_error})
    app.router.redirect_slashes = False
    app.state.service = service
    app.add_middleware(Boundary, service=service)
    return app


async def _routing_error(request: Request, error: HTTPException) -> Response:
    """404 and 405, which the router raises."""
    path = request.url.path
    if error.status_code == 404:
        answer = not_found(path)
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        answer = HTTPError(
            405,
            f"{request.method[:20]} is not allowed at {path[:200]}; allowed: {allowed}",
            code="method_not_allowed",
        )
    else:
        answer = HTTPError(error.status_code, str(error.detail))
    return Response(
        answer.encoded(), answer.status, headers=error.headers, media_type="application/json"
    )
