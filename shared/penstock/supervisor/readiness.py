"""Waits until the system answers requests, asking as a client would."""

from __future__ import annotations

import asyncio

from penstock.config import TransportSettings

POLL_INTERVAL = 0.05
_ANSWER_TIMEOUT = 5.0


async def http_ready(host: str, port: int) -> None:
    """Returns once GET /health/ready answers 200."""
    while not await _asks(host, port):
        await asyncio.sleep(POLL_INTERVAL)


async def _asks(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(
                    b"GET /health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
                )
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status.split(b" ")[1:2] == [b"200"]


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
