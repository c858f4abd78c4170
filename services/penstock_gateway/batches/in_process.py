"""Asking this process's own application, without a socket, and its answers as lines of a batch's
results."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from starlette.types import ASGIApp, Message, Scope

from penstock_gateway.generate.batch import Withdrawal
from penstock_gateway.keys.ring import CALLER, Caller


@dataclass(slots=True)
class OwnAnswer:
    """What the application answered. retry_after: seconds, where it says so."""

    status: int = 500
    request_id: str = ""
    retry_after: float | None = None
    body: bytearray = field(default_factory=bytearray)


async def ask(
    app: ASGIApp,
    path: str,
    body: bytes,
    caller: Caller,
    hears: Callable[[bytes], None] | None = None,
    *,
    last_event_id: str | None = None,
    withdrawal: Withdrawal | None = None,
) -> OwnAnswer:
    """The answer to a POST by `caller`. Cancelling it disconnects, which aborts the request.

    hears: called with the pieces of an answer with the status 200, which isn't kept then.
    last_event_id: from which the stream goes on; None: it begins.  withdrawal: is asked for before
    cancelling it where nobody will go on with it."""
    answer = OwnAnswer()
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        # Until it is cancelled, which is when the answer is there.
        return await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            _read_headers(answer, message.get("headers", ()))
        elif hears is not None and answer.status == 200:
            hears(message.get("body", b""))
        else:
            answer.body += message.get("body", b"")

    scope = _scope(path, body, caller, last_event_id)
    if withdrawal is not None:
        scope[Withdrawal.SCOPE] = withdrawal
    await app(scope, receive, send)
    return answer


def _scope(path: str, body: bytes, caller: Caller, last_event_id: str | None) -> Scope:
    last = [] if last_event_id is None else [(b"last-event-id", last_event_id.encode())]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *last,
        ],
        "client": None,
        "server": None,
        CALLER: caller,
    }


def _read_headers(answer: OwnAnswer, headers: list[tuple[bytes, bytes]]) -> None:
    for name, value in headers:
        if name == b"x-request-id":
            answer.request_id = value.decode("latin-1")
        elif name == b"retry-after" and value.isdigit():
            answer.retry_after = float(value)


class LineResponse(msgspec.Struct, frozen=True):
    """body: as the endpoint answered."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True):
    """Why a line has no answer."""

    code: str
    message: str


class LineResult(msgspec.Struct, frozen=True):
    """The result of one line of a batch."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None


def result_line(custom_id: str, answer: OwnAnswer) -> str:
    """The line of a request that was answered, well or badly."""
    body = msgspec.Raw(bytes(answer.body) or b"null")
    response = LineResponse(answer.status, answer.request_id, body)
    return _encoded(custom_id, response, None)


def error_line(custom_id: str, code: str, message: str) -> str:
    """The result of a line that was never asked."""
    return _encoded(custom_id, None, LineError(code, message))


def _encoded(custom_id: str, response: LineResponse | None, error: LineError | None) -> str:
    name = f"batch_req_{os.urandom(16).hex()}"
    return msgspec.json.encode(LineResult(name, custom_id, response, error)).decode()
