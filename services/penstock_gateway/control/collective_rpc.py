"""POST /collective_rpc, as in vLLM: calls a method of a worker extension on all ranks."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.errors import RequestFailed
from penstock.protocol.call_values import json_value
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.http.replies import send_json
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.service import Service


class CollectiveRPCRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """method: of a worker extension that is installed.  timeout: seconds for which it may wait
    until it begins, and then again for which it may run; 60 if it isn't said, 3600 at most.  model:
    whose workers, where the server has several."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None
    model: str | None = None


class CollectiveRPCReply(msgspec.Struct, frozen=True):
    """What each rank returned, in their order. An array is an object with `dtype`, `shape` and its
    bytes in `base64`."""

    results: list[Any]


CALL = Operation(
    method="POST",
    path="/collective_rpc",
    summary="Call a method of a worker extension on all ranks, between two steps",
    tag="operations",
    body=CollectiveRPCRequest,
    reply=CollectiveRPCReply,
    access="admin",
)


class CollectiveRPCEndpoint(JsonEndpoint[CollectiveRPCRequest]):
    """Answers when all ranks have. Starts no model that isn't there."""

    request_type = CollectiveRPCRequest

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        client = self._service.models.ask(request.model).backend.client
        results = await client.call_workers(
            request.method, request.args, request.kwargs, request.timeout
        )
        reply = CollectiveRPCReply([json_value(each) for each in results])
        try:
            payload = msgspec.json.encode(reply)
        except TypeError as error:  # Keys of JSON's objects are strings or numbers.
            raise RequestFailed(
                f"{request.method}: its result can't be written as JSON: {error}"
            ) from None
        await send_json(send, 200, payload)


def routes(service: Service) -> list[OperationRoute]:
    """The route."""
    return [CALL.route(CollectiveRPCEndpoint(service))]
