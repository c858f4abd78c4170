"""The ASGI application."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from penstock.config import GatewayConfig
from penstock.version import __version__
from penstock_gateway import health, openapi, status, version
from penstock_gateway.boundary import Boundary, not_found
from penstock_gateway.errors import HTTPError
from penstock_gateway.openai import models
from penstock_gateway.openai.chat_completions import ChatCompletions
from penstock_gateway.openai.completions import Completions
from penstock_gateway.openai.responses import Responses
from penstock_gateway.service import Patience, Service

if TYPE_CHECKING:
    from penstock.client import EngineClient


def create_app(
    client: EngineClient, config: GatewayConfig, *, patience: Patience | None = None
) -> FastAPI:
    """A gateway over `client`, which the caller starts and closes. `app.state.service` is what
    its endpoints share."""
    service = Service(client, config, patience or Patience())
    app = FastAPI(
        title="Penstock",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: _routing_error},
    )
    app.state.service = service
    app.add_middleware(Boundary, service=service)
    # These two are plain ASGI applications: they hold response headers back, and watch the
    # connection, which a handler that returns a response can't.
    for path, endpoint in (
        ("/v1/chat/completions", ChatCompletions(service)),
        ("/v1/completions", Completions(service)),
        ("/v1/responses", Responses(service)),
    ):
        app.router.routes.append(Route(path, endpoint, methods=["POST"]))
    for router in (
        models.router(service),
        health.router(service),
        status.router(service),
        version.router(),
    ):
        app.include_router(router)
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]
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
