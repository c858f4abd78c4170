"""Waits until the system answers requests, asking as a client would."""

from __future__ import annotations

import asyncio
import ssl
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


async def gateway_ready(host: str, port: int, pid: int, tls: ssl.SSLContext | None = None) -> None:
    """Returns once the gateway with that pid answers and is ready. Others may share the socket,
    so it is asked for its name, over new connections."""
    while not await _is_ready(host, port, pid, tls):
        await asyncio.sleep(POLL_INTERVAL)


async def _is_ready(host: str, port: int, pid: int, tls: ssl.SSLContext | None) -> bool:
    try:
        answer = await _get(host, port, "/health/ready", tls)
        health = msgspec.json.decode(answer, type=_Health)
    except (OSError, TimeoutError, msgspec.DecodeError):
        return False
    return health.pid == pid


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


async def engine_ready(endpoint: str, settings: TransportSettings) -> None:
    """Returns once the engine core at `endpoint` says that it is ready (a worker is up)."""
    # Imported here: the tokeniser that comes with it is only needed without a gateway to ask.
    from penstock.client.engine_client import EngineClient

    client = EngineClient(endpoint, name="supervisor", settings=settings)
    await client.start()
    try:
        while client.status is None or not client.status.ready:
            await asyncio.sleep(POLL_INTERVAL)
    finally:
        await client.close()
