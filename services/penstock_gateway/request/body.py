"""Reads a request's body within its limits, with either HTTP parser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Scope

from penstock.errors import PenstockError
from penstock_gateway.http.errors import ClientGone, HTTPError

Feed = Callable[[bytes], None]
"""Takes the next part of a body."""

LINGER_BYTES = 256 * 1024 * 1024
LINGER_SECONDS = 10.0
"""How much of an over-long body is read and dropped, so that its sender gets to see the answer:
a connection closed with unread data is reset, and the answer lost."""


async def read_body(scope: Scope, receive: Receive, *, limit: int, timeout: float) -> bytes:
    """The whole body, at most `limit` bytes. Raises HTTPError 413, 408 or 400, or ClientGone."""
    parts: list[bytes] = []
    await feed_body(scope, receive, parts.append, limit=limit, timeout=timeout)
    if len(parts) == 1:
        return parts[0]
    await asyncio.sleep(0)  # Of a long body, putting it together is a turn by itself.
    body = b"".join(parts)
    parts.clear()
    await asyncio.sleep(0)
    return body


async def feed_body(
    scope: Scope, receive: Receive, feed: Feed, *, limit: int, timeout: float
) -> None:
    """Gives the body, at most `limit` bytes, to `feed` as it comes in. Raises as `read_body` does,
    and what `feed` raises: the rest of the body is dropped then."""
    declared, expects_go_ahead = _read_headers(scope)
    if declared is not None and declared > limit:
        if not expects_go_ahead:
            await _linger(receive)
        raise _too_large(limit)
    try:
        async with asyncio.timeout(timeout):
            await _feed(receive, feed, limit)
    except TimeoutError:
        raise HTTPError(
            408,
            f"the request body did not arrive within {timeout:g} seconds",
            code="request_timeout",
            headers=(("connection", "close"),),
        ) from None


def check_json_type(scope: Scope, *, forms_too: bool = False) -> None:
    """Raises HTTPError 415 for a body that says that it is not JSON; one that says nothing passes.
    A page can send text and forms to other sites without asking first, and JSON only if it may.
    forms_too: application/x-www-form-urlencoded, which curl says of everything, passes."""
    for name, value in scope["headers"]:
        if name != b"content-type" or value == b"application/json":
            continue
        kind = value.partition(b";")[0].strip().lower()
        if kind in (b"", b"application/json") or (
            kind.startswith(b"application/") and kind.endswith(b"+json")
        ):
            continue
        if forms_too and kind == b"application/x-www-form-urlencoded":
            continue
        raise HTTPError(
            415,
            f"content-type {value[:80].decode('ascii', 'replace')!r} is not accepted here: send "
            "JSON with the header `content-type: application/json` (curl: -H 'content-type: "
            "application/json')",
            code="unsupported_media_type",
        )


async def _feed(receive: Receive, feed: Feed, limit: int) -> None:
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("disconnected while sending the body")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            if message.get("more_body", False):
                await _linger(receive)
            raise _too_large(limit)
        try:
            feed(part)
        except PenstockError:
            if message.get("more_body", False):
                await _linger(receive)
            raise
        if not message.get("more_body", False):
            return


async def _linger(receive: Receive) -> None:
    dropped = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while dropped < LINGER_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("disconnected while sending the body")
                dropped += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _too_large(limit: int) -> HTTPError:
    return HTTPError(
        413,
        f"the request body is larger than {limit} bytes, the maximum",
        code="request_too_large",
        headers=(("connection", "close"),),
    )


def _read_headers(scope: Scope) -> tuple[int | None, bool]:
    """Declared length in bytes, if any, and whether the client waits for a 100 Continue."""
    declared: int | None = None
    expects = False
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            declared = int(value) if len(value) <= 18 else 10**18
        elif name == b"expect":
            expects = value.lower() == b"100-continue"
        elif name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise HTTPError(
                400,
                f"content-encoding {value[:40].decode('ascii', 'replace')!r} is not supported; "
                "send the body uncompressed",
                code="unsupported_content_encoding",
            )
    return declared, expects
