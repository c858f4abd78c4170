"""GET /version."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.version import __version__
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.service import Service


class Version(msgspec.Struct, frozen=True):
    """The version of Penstock that this gateway runs."""

    version: str


OPERATION = Operation(
    method="GET",
    path="/version",
    summary="The server's version",
    tag="operations",
    reply=Version,
)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    body = msgspec.json.encode(Version(__version__))

    async def version(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return [OPERATION.route(version)]
