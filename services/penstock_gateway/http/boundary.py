"""The outermost layer of the application: every response passes through it."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.process import logs
from penstock_gateway.http.door import Door
from penstock_gateway.http.errors import ClientGone, HTTPError, as_http_error, head_too_large
from penstock_gateway.http.operations import OPENAI_ERRORS, ErrorShape, Operation
from penstock_gateway.http.replies import send_error
from penstock_gateway.http.request_id import REQUEST_ID
from penstock_gateway.http.sockets import guarded, status_of
from penstock_gateway.service import Service
from penstock_gateway.tracing.trace import log_fields

log = logs.get(__name__)


LIMIT_HEADERS = "penstock.limit_headers"
"""Key of a scope's x-ratelimit-* headers, for requests whose API key has limits."""

_NO_HEADERS: dict[bytes, bytes] = {}
_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Boundary:
    """Gives each request its id, and each response the headers that tell of it and of limits.

    Turns whatever an endpoint raises into the error object of its path (OpenAI's, unless the
    operation says otherwise), as long as no response has been started.
    """

    def __init__(self, app: ASGIApp, service: Service, operations: Iterable[Operation]) -> None:
        self._app = app
        self._service = service
        operations = list(operations)
        self._door = Door(service.config, operations, has_keys=service.ring is not None)
        others = [each for each in operations if each.errors_as != OPENAI_ERRORS]
        self._shapes = {each.path: each.errors_as for each in others}
        self._shapes_below = tuple(
            (f"{each.path}/", each.errors_as) for each in others if not each.parameters
        )
        self._shapes_by_header = {
            each.errors_as.asked_by: each.errors_as for each in others if each.errors_as.asked_by
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope)
        scope[REQUEST_ID] = request_id
        if scope["type"] == "websocket":
            await guarded(self._opened, scope, receive, self._counting(send), request_id)
            return
        shape = self._shape(scope)
        started = finished = False

        async def send_with_id(message: Message) -> None:
            nonlocal started, finished
            if message["type"] == "http.response.start":
                started = True
                self._service.responses[message["status"]] += 1
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    *([] if shape.id_header is None else [(shape.id_header, request_id.encode())]),
                    *scope.get(LIMIT_HEADERS, _NO_HEADERS).items(),
                ]
            else:
                finished = not message.get("more_body", False)
            await send(message)

        try:
            if head_bytes(scope) > self._service.config.max_header_bytes:
                raise head_too_large(self._service.config.max_header_bytes)
            self._door.check(scope)
            await self._app(scope, receive, send_with_id)
        except ClientGone as gone:
            log.debug("client gone", request=request_id, reason=str(gone), **log_fields(scope))
        except asyncio.CancelledError as cancelled:
            # The server cancels what is still open when its time to shut down is over.
            if not started:
                answer = as_http_error(cancelled)
                await send_error(send_with_id, answer, shape.encode(answer, request_id))
            if not self._service.draining:
                raise
        except Exception as error:
            answer = as_http_error(error)
            if answer.status == 500 or isinstance(error, MemoryError):
                log.error(
                    "request failed",
                    request=request_id,
                    path=scope["path"],
                    exception=True,
                    **log_fields(scope),
                )
            if not started:
                await send_error(send_with_id, answer, shape.encode(answer, request_id))
            elif not finished:
                raise  # The server cuts the connection: the client must see that it is not whole.

    def _shape(self, scope: Scope) -> ErrorShape:
        """How errors look for this client at this path: also below a path, where nothing is."""
        path = scope["path"]
        if path in self._shapes:
            return self._shapes[path]
        for name, _ in scope["headers"]:
            if name in self._shapes_by_header:
                return self._shapes_by_header[name]
        for above, shape in self._shapes_below:
            if path.startswith(above):
                return shape
        return OPENAI_ERRORS

    def _counting(self, send: Send) -> Send:
        """Counts how handshakes are answered."""

        async def counting(message: Message) -> None:
            status = status_of(message)
            if status is not None:
                self._service.responses[status] += 1
            await send(message)

        return counting

    async def _opened(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket's handshake has come."""
        config = self._service.config
        if head_bytes(scope) > config.max_header_bytes:
            raise head_too_large(config.max_header_bytes)
        self._door.check(scope)
        await self._app(scope, receive, send)


def request_id_of(scope: Scope) -> str:
    """The client's x-request-id when it is 1 to 128 printable ASCII characters, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return str(value, "ascii")
    return uuid.uuid4().hex


def head_bytes(scope: Scope) -> int:
    """Bytes of the request's line and headers, as they were sent, give or take some blanks."""
    line = (
        len(scope.get("raw_path") or b"")
        + len(scope["query_string"])
        + len(scope.get("method", "GET"))
    )
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def not_found(path: str) -> HTTPError:
    """404 for a path that leads nowhere."""
    return HTTPError(404, f"there is no endpoint at {path[:200]}", code="not_found")
