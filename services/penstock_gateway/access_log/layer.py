"""The outermost ASGI layer: it sees the status that the client gets, whichever layer set it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.process import logs
from penstock_gateway.access_log.record import AccessRecord, current
from penstock_gateway.http.operations import Operation
from penstock_gateway.http.request_id import REQUEST_ID
from penstock_gateway.http.rpc_call import CALL
from penstock_gateway.http.sockets import status_of
from penstock_gateway.keys.access import CALLER

LOGGER = "penstock_gateway.access"
HEALTH = "/health"
MAX_PATH = 200
"""Characters of a path that are shown."""


class AccessLog:
    """ASGI middleware. A line is written for each operation that counts against a key, and for each
    error, but for health checks: they and scrapes would drown the others; and for each WebSocket,
    when it is closed."""

    def __init__(self, app: ASGIApp, *, operations: Iterable[Operation]) -> None:
        self._app = app
        self._counted = frozenset((o.method, o.path) for o in operations if o.counted)
        self._log = logs.get(LOGGER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        record = AccessRecord()

        async def noting(message: Message) -> None:
            status = status_of(message)
            if status is not None:
                record.status = status
            await send(message)

        token = current.set(record)
        try:
            await self._app(scope, receive, noting)
        finally:
            current.reset(token)
            if self._shows(scope, record.status):
                self._write(scope, record)

    def _shows(self, scope: Scope, status: int) -> bool:
        if scope["type"] == "websocket" or (scope["method"], scope["path"]) in self._counted:
            return True
        return status >= 400 and not scope["path"].startswith(HEALTH)

    def _write(self, scope: Scope, record: AccessRecord) -> None:
        caller, client = scope.get(CALLER), scope.get("client")
        who = {} if caller is None or caller.key is None else {"key": caller.key.name}
        call = {"call": scope[CALL]} if CALL in scope else {}
        model = {"model": record.model} if record.prompts else {}
        self._log.info(
            "request",
            method=scope.get("method", "GET"),
            path=scope["path"][:MAX_PATH],
            status=record.status,
            **call,
            **who,
            **model,
            **record.fields(),
            client=client[0] if client else "",
            request=scope.get(REQUEST_ID, ""),
        )


def setup(process_name: str, form: str) -> None:
    """Sends the lines to stderr, whatever --log-level says. form: text or json."""
    handler = logging.StreamHandler()
    handler.setFormatter(logs.formatter(process_name, "json" if form == "json" else "logfmt"))
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
