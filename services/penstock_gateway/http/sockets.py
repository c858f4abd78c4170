"""WebSockets: where their key is, and how they are refused and ended."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.process import logs
from penstock_gateway.http.errors import ClientGone, HTTPError, as_http_error, logged_cause

log = logs.get(__name__)

SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."
"""What a page has before its API key in the list of subprotocols: it can send no headers of its
own."""
LEAVING = 1001
FAILED = 1011
"""Codes of RFC 6455, section 7.4.1."""
MOST_REASON = 123
"""Bytes of a reason for closing (section 5.5 leaves 125, and two are the code's)."""
SWITCHED = 101
"""HTTP's status of a handshake that became a WebSocket."""


def key_of(scope: Scope) -> bytes:
    """The API key among the subprotocols; empty without one, and with more than one."""
    found = [each for each in scope["subprotocols"] if each.startswith(KEY_SUBPROTOCOL)]
    return found[0].removeprefix(KEY_SUBPROTOCOL).encode() if len(found) == 1 else b""


def status_of(message: Message) -> int | None:
    """The HTTP status that a message to the server begins an answer with, whether to a request or
    to a handshake; None: it begins none."""
    match message["type"]:
        case "http.response.start" | "websocket.http.response.start":
            return int(message["status"])
        case "websocket.accept":
            return SWITCHED
    return None


async def guarded(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, request_id: str
) -> None:
    """Runs the application. What it raises before the WebSocket is open becomes an HTTP response;
    afterwards, the WebSocket is closed."""
    opened = False
    header = (b"x-request-id", request_id.encode())

    async def noting(message: Message) -> None:
        nonlocal opened
        if message["type"] == "websocket.accept":
            opened = True
            message["headers"] = [*message.get("headers", ()), header]
        elif message["type"] == "websocket.close" and not opened:
            # The router's word for a path that it doesn't know.
            path = scope["path"]
            raise HTTPError(404, f"there is no WebSocket at {path[:200]}", code="not_found")
        await send(message)

    try:
        await app(scope, receive, noting)
    except ClientGone as gone:
        log.debug("client gone", request=request_id, reason=str(gone))
    except (Exception, asyncio.CancelledError) as error:
        answer = as_http_error(error)
        if answer.status == 500:
            log.error("a WebSocket failed", request=request_id, **logged_cause(error))
        if not opened:
            await _refuse(send, answer, header)
        else:
            code = LEAVING if isinstance(error, asyncio.CancelledError) else FAILED
            # The server raises these where the connection is closed, or closing.
            with contextlib.suppress(OSError, RuntimeError):
                await send(closing(code, answer.body.message))


def closing(code: int, reason: str) -> Message:
    """The message that closes a WebSocket. reason: cut where it is longer than a frame allows."""
    fits = reason.encode()[:MOST_REASON].decode(errors="ignore")
    return {"type": "websocket.close", "code": code, "reason": fits}


async def _refuse(send: Send, answer: HTTPError, header: tuple[bytes, bytes]) -> None:
    headers = [(name.encode(), value.encode()) for name, value in answer.headers]
    headers += [(b"content-type", b"application/json"), header]
    await send(
        {"type": "websocket.http.response.start", "status": answer.status, "headers": headers}
    )
    await send({"type": "websocket.http.response.body", "body": answer.encoded()})
