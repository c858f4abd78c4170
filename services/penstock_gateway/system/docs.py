"""GET /docs: Swagger UI over the OpenAPI document. It is this server's own copy, and loads nothing
from other servers. The page itself reveals nothing about this server: the document that it reads
needs a key."""

from __future__ import annotations

from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.service import Service
from penstock_gateway.system.page import HEADERS

OPERATION = Operation(
    method="GET",
    path="/docs",
    summary="These pages",
    tag="operations",
    access="open",
    media_type="text/html",
)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    page = resources.files("penstock_gateway").joinpath("web/docs.html").read_bytes()

    async def docs(request: Request) -> Response:
        return Response(page, headers=HEADERS, media_type="text/html")

    return [OPERATION.route(docs)]
