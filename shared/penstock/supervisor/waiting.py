"""Waits until the system answers requests, asking as a client would."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.config.settings import TransportSettings

POLL_INTERVAL = 0.05
_ANSWER_TIMEOUT = 5.0


class _Health(msgspec.Struct):
    """What is read of GET /health/ready, which needs no API key."""

    pid: int


async def http_ready(host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
    """Returns once GET /health/ready answers 200."""
    while not await _asks(host, port, tls):
        await asyncio.sleep(POLL_INTERVAL)


async def file_there(file: Path) -> None:
    """Returns once the file exists, which a process makes when it is ready."""
    while not file.exists():
        await asyncio.sleep(POLL_INTERVAL)


async def gateway_ready(
    host: str, port: int, pid: Callable[[], int | None], tls: ssl.SSLContext | None = None
) -> None:
    """Returns once the gateway whose pid that is by then answers and is ready. Others may share the
    socket, so it is asked for its name, over new connections."""
    while (ready := await _ready_pid(host, port, tls)) is None or ready != pid():
        await asyncio.sleep(POLL_INTERVAL)


async def _ready_pid(host: str, port: int, tls: ssl.SSLContext | None) -> int | None:
    """The pid of a gateway that is ready; None where the one that was asked is not."""
    try:
        answer = await _get(host, port, "/health/ready", tls)
        return msgspec.json.decode(answer, type=_Health).pid
    except (OSError, TimeoutError, msgspec.DecodeError):
        return None


async def _asks(host: str, port: int, tls: ssl.SSLContext | None) -> bool:
    try:
        await _get(host, port, "/health/ready", tls)
    except (OSError, TimeoutError):
        return False
    return True


async def _get(host: str, port: int, path: str, tls: ssl.SSLContext | None) -> bytes:
    """The body of a 200. Raises OSError or TimeoutError for anything else."""
    async with asyncio.timeout(_ANSWER_TIMEOUT):
        reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        try:
            head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.read(-1)
        finally:
            writer.close()
    top, _, body = answer.partition(b"\r\n\r\n")
    if top.split(b" ")[1:2] != [b"200"]:
        raise ConnectionError(f"GET {path} was not answered by 200")
    return body


async def engine_ready(endpoints: str, settings: TransportSettings) -> None:
    """Returns once one of the engine cores, at endpoints with commas between them, says that it is
    ready (a worker is up). No more is made of its words: the tokenizer among them takes longer to
    read than a small model."""
    # Imported here: where there is a gateway, it is asked, over HTTP.
    import zmq

    from penstock.protocol import PROTOCOL_VERSIONS
    from penstock.protocol.from_frontend import Hello
    from penstock.protocol.to_frontend import Status, ToFrontend
    from penstock.transport.events import Received
    from penstock.transport.session_client import SessionClient

    decoder = msgspec.msgpack.Decoder(ToFrontend)
    context = zmq.Context()
    sessions = [
        SessionClient(
            context,
            endpoint,
            decoder,
            lambda: Hello(list(PROTOCOL_VERSIONS), "supervisor", os.getpid()),
            settings,
        )
        for endpoint in endpoints.split(",")
    ]

    def ready() -> bool:
        heard = [event for each in sessions for event in each.take(time.monotonic())]
        messages = [event.message for event in heard if isinstance(event, Received)]
        return any(isinstance(each, Status) and each.ready for each in messages)

    try:
        while not ready():
            await asyncio.sleep(POLL_INTERVAL)
    finally:
        for session in sessions:
            session.close()
        context.term()
