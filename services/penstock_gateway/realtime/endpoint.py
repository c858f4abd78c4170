"""GET /v1/realtime: a WebSocket that turns sound into text, as in vLLM."""

from __future__ import annotations

from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from penstock_gateway.http.errors import leaving
from penstock_gateway.http.scope_keys import REQUEST_ID
from penstock_gateway.http.socket_protocol import stay_of
from penstock_gateway.http.sockets import SUBPROTOCOL
from penstock_gateway.realtime.session import RealtimeSession
from penstock_gateway.request.fields import connection_terms
from penstock_gateway.service import Service

PATH = "/v1/realtime"


class RealtimeEndpoint:
    """An ASGI application for WebSockets."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._service.draining:
            raise leaving()
        terms = connection_terms(scope)
        with self._service.connections.one(terms.tenant):
            await receive()  # websocket.connect
            offered = SUBPROTOCOL in scope["subprotocols"]
            accepted = SUBPROTOCOL if offered else None
            await send({"type": "websocket.accept", "subprotocol": accepted})
            session = RealtimeSession(
                self._service,
                receive,
                send,
                terms=terms,
                name=scope[REQUEST_ID],
                stay=stay_of(scope),
            )
            await session.run()


def sockets(service: Service) -> list[WebSocketRoute]:
    """The one route."""
    return [WebSocketRoute(PATH, RealtimeEndpoint(service))]
