"""A call as the application sees it: a POST whose path is the method, and what endpoints have in
common whose bodies are messages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock.request.terms import MAX_DEADLINE_MS
from penstock_gateway.http.operations import Operation
from penstock_gateway.http.replies import send_whole
from penstock_gateway.http.scope_keys import CALL
from penstock_gateway.service import Service
from penstock_rpc.frames import FRAMES

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

MESSAGE = "penstock.message"
"""Key of the call's message in a scope, for endpoints that are no part of the HTTP API."""


_HEADERS = frozenset(
    {
        "authorization",
        "x-api-key",
        "x-request-id",
        "x-deadline-ms",
        "x-penstock-timeline",
        "traceparent",
        "tracestate",
    }
)
"""Metadata that mean what the HTTP headers of these names mean; no others are passed on."""


def scope_of(
    context: ServicerContext,
    method: str,
    *,
    path: str | None = None,
    message: object = None,
    size: int = 0,
    request_id: str = "",
) -> Scope:
    """path: of the HTTP API, where the call is one of its operations; None: the method itself.
    message: what an endpoint of its own gets.  size: bytes of a JSON body.  request_id: where the
    metadata have none."""
    headers = _headers(context.invocation_metadata() or ())
    if request_id and not any(name == b"x-request-id" for name, _ in headers):
        headers.append((b"x-request-id", request_id.encode()))
    _shorten(headers, context.time_remaining())
    headers += [
        (b"content-type", b"application/json"),
        (b"content-length", str(size).encode()),
    ]
    target = method if path is None else path
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "2",
        "method": "POST",
        "scheme": "http",
        "path": target,
        "raw_path": target.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": _client(context.peer()),
        "server": None,
        "state": {},
        CALL: method,
        MESSAGE: message,
    }


def key_scope(metadata: Iterable[tuple[str, str | bytes]]) -> Scope:
    """A scope that holds only what an API key is found in."""
    return {"type": "http", "headers": _headers(metadata)}


def _headers(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    return [
        (key.encode(), value.encode() if isinstance(value, str) else value)
        for key, value in metadata
        if key in _HEADERS
    ]


def _shorten(headers: list[tuple[bytes, bytes]], seconds: float | None) -> None:
    """The call's own deadline is the request's, unless x-deadline-ms is the earlier one."""
    if seconds is None or seconds > MAX_DEADLINE_MS / 1000:
        return
    left = max(1, math.ceil(1000 * seconds))
    for place, (name, value) in enumerate(headers):
        if name == b"x-deadline-ms":
            if value.isdigit() and len(value) < 12 and int(value) > left:
                headers[place] = (name, str(left).encode())
            return
    headers.append((b"x-deadline-ms", str(left).encode()))


def _client(peer: str) -> tuple[str, int] | None:
    """`ipv4:1.2.3.4:5`, `ipv6:[::1]:5`, or `unix:` and no address."""
    kind, _, address = peer.partition(":")
    host, _, port = address.rpartition(":")
    if not kind.startswith("ipv") or not port.isdigit():
        return None
    return host.strip("[]").replace("%5B", "").replace("%5D", ""), int(port)


def operation(
    path: str,
    summary: str,
    *,
    access: Literal["open", "key", "admin"] = "key",
    counted: bool = False,
    traced_as: str | None = None,
) -> Operation:
    """One method of a service. path: as gRPC has it."""
    return Operation(
        method="POST",
        path=path,
        summary=summary,
        tag="gRPC",
        access=access,
        counted=counted,
        described=False,
        traced_as=traced_as,
    )


def message_of(scope: Scope) -> Any:
    """The call's message. Raises InvalidRequest for a request that is no call."""
    message = scope.get(MESSAGE)
    if message is None:
        raise InvalidRequest(f"{scope['path']} is a gRPC method and doesn't accept JSON")
    return message


class MessageEndpoint(ABC):
    """Answers one message with another."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = await self.answer(message_of(scope))
        await send_whole(send, 200, reply.SerializeToString(), FRAMES.content_type.decode())

    @abstractmethod
    async def answer(self, message: Any) -> Any:
        """The reply's message. Raises what endpoints raise."""
