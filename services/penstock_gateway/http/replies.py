"""Whole (unstreamed) responses at the ASGI level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.types import Send

from penstock_gateway.http.errors import HTTPError


async def send_json(
    send: Send, status: int, payload: bytes, headers: Iterable[tuple[str, str]] = ()
) -> None:
    """Sends `payload`, encoded JSON, as the whole response."""
    await send_whole(send, status, payload, "application/json", headers)


async def send_whole(
    send: Send,
    status: int,
    payload: bytes,
    content_type: str,
    headers: Iterable[tuple[str, str]] = (),
) -> None:
    """Sends `payload` as the whole response."""
    start: dict[str, Any] = {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(payload)).encode()),
            *((name.encode(), value.encode()) for name, value in headers),
        ],
    }
    await send(start)
    await send({"type": "http.response.body", "body": payload})


async def send_error(send: Send, error: HTTPError, body: bytes) -> None:
    """Sends the error's body, JSON, under the error's own status."""
    await send_json(send, error.status, body, error.headers)
