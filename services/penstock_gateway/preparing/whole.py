"""Requests that preparers answer as a whole: embeddings and scores of many texts, tokens of long
ones."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import Receive, Scope, Send

from penstock_gateway.http.events import while_connected
from penstock_gateway.http.operations import QUERY
from penstock_gateway.http.scope_keys import REQUEST_ID
from penstock_gateway.keys.ring import current
from penstock_gateway.preparing.answers import Home
from penstock_gateway.preparing.exchange import BodyExchange
from penstock_gateway.preparing.wire import HandledWhole, HandleWhole
from penstock_gateway.request.fields import terms_headers

if TYPE_CHECKING:
    from penstock_gateway.request.endpoint import JsonEndpoint
    from penstock_gateway.service import Service


class Parameters(msgspec.Struct, frozen=True):
    """Parameters of a path and of a query, as a scope has them."""

    path: dict[str, Any] = {}
    query: dict[str, Any] = {}


async def answer_elsewhere(
    service: Service,
    endpoint: JsonEndpoint[Any],
    scope: Scope,
    body: bytes,
    receive: Receive,
    send: Send,
) -> None:
    """Answers a request whose body was read. Raises the body's errors."""
    headers = terms_headers(scope)
    exchange = BodyExchange(service, headers.tenant, body)
    parameters = Parameters(scope.get("path_params", {}), scope.get(QUERY, {}))
    task = HandleWhole(
        endpoint.place,
        body,
        scope["headers"],
        scope["method"],
        scope["path"],
        msgspec.json.encode(parameters),
        scope[REQUEST_ID],
        headers.tenant,
        background=current.get().background,
        cpu=exchange.most,
    )

    async def handled() -> HandledWhole:
        async with AsyncExitStack() as stack:
            stack.callback(exchange.leave)
            home = Home(service, headers.tenant, grant=headers.grant)
            stack.push_async_exit(home.stack)
            reply = await exchange.bravely(lambda: exchange.ask(task, exchange.most, home))
            if not isinstance(reply, HandledWhole):
                raise RuntimeError(f"a preparer answers a request with {type(reply).__name__}")
            return reply

    with service.answering:
        reply = await while_connected(handled(), receive)
        await send(
            {"type": "http.response.start", "status": reply.status, "headers": reply.headers}
        )
        for place, piece in enumerate(reply.pieces):
            more = place + 1 < len(reply.pieces)
            await send({"type": "http.response.body", "body": piece, "more_body": more})
