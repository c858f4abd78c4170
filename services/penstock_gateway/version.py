"""GET /version."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from penstock.version import __version__


class Version(msgspec.Struct, frozen=True):
    """The version of Penstock that this gateway runs."""

    version: str


def router() -> APIRouter:
    """The one route."""
    routes = APIRouter(tags=["operations"])
    body = msgspec.json.encode(Version(__version__))

    @routes.get("/version", summary="The version of this server")
    async def version() -> Response:
        return Response(body, media_type="application/json")

    return routes
