"""Whole (unstreamed) responses at the ASGI level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.types import Send

from penstock_gateway.http.errors import HTTPError


async def send_json(
    send: Send, status: int, payload: bytes | list[bytes], headers: Iterable[tuple[str, str]] = ()
) -> None:
    """Sends `payload`, encoded JSON, as the whole response. A list: in these pieces."""
    await send_whole(send, status, payload, "application/json", headers)


async def send_whole(
    send: Send,
    status: int,
    payload: bytes | list[bytes],
    content_type: str,
    headers: Iterable[tuple[str, str]] = (),
) -> None:
    """Sends `payload` as the whole response, a list piece by piece."""
    pieces = [payload] if isinstance(payload, bytes) else payload
    start: dict[str, Any] = {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", content_type.encode()),
            (b"content-length", str(sum(map(len, pieces))).encode()),
            *((name.encode(), value.encode()) for name, value in headers),
        ],
    }
    await send(start)
    for piece in pieces[:-1]:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": pieces[-1]})


async def send_error(send: Send, error: HTTPError, body: bytes) -> None:
    """Sends the error's body, JSON, under the error's own status."""
    await send_json(send, error.status, body, error.headers)
