"""GET /v1/receipts/key."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.request.receipt import PublicKey
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.service import Service

OPERATION = Operation(
    method="GET",
    path="/v1/receipts/key",
    summary="The public key that checks this server's receipts",
    tag="operations",
    reply=PublicKey,
    statuses=(404,),
)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""

    async def key(request: Request) -> Response:
        if service.receipts is None:
            raise HTTPError(
                404,
                "this server gives no receipts; its operator can enable that with "
                "--receipt-key-file",
                code="receipts_off",
            )
        body = msgspec.json.encode(service.receipts.public)
        return Response(body, media_type="application/json")

    return [OPERATION.route(key)]
