"""The ASGI layer that opens a request's span, and always closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock_gateway.http.operations import Operation
from penstock_gateway.http.request_id import REQUEST_ID
from penstock_gateway.http.sockets import status_of
from penstock_gateway.tracing.trace import TRACE, current

if TYPE_CHECKING:
    from penstock_gateway.tracing.tracer import Tracing


class TraceLayer:
    """ASGI middleware, just inside the boundary. operations: those that count against a key's
    requests are traced, and no others: health checks and scrapes would drown them. A WebSocket is
    traced from its handshake until it is closed."""

    def __init__(self, app: ASGIApp, *, tracing: Tracing, operations: Iterable[Operation]) -> None:
        self._app = app
        self._tracing = tracing
        self._traced = {(o.method, o.path): o for o in operations if o.counted}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = None
        if scope["type"] == "http":
            operation = self._traced.get((scope["method"], scope["path"]))
            if operation is not None:
                trace = self._tracing.begin(scope, scope[REQUEST_ID], operation.traced_as)
        elif scope["type"] == "websocket":
            trace = self._tracing.begin(scope, scope[REQUEST_ID])
        if trace is None:
            await self._app(scope, receive, send)
            return

        async def noting(message: Message) -> None:
            status = status_of(message)
            if status is not None:
                trace.status = status
            await send(message)

        scope[TRACE] = trace
        token = current.set(trace)
        try:
            await self._app(scope, receive, noting)
        except (Exception, asyncio.CancelledError) as error:
            trace.error = error
            raise
        finally:
            current.reset(token)
            trace.end()
            self._tracing.finish(trace)
