"""A rolling restart of the gateways: one after the other, so that one serves at any time."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.config.settings import TransportSettings
from penstock.process import logs
from penstock.supervisor.child import Child

log = logs.get(__name__)

ROLL = signal.SIGUSR2
"""Asks the supervisor to restart the gateways one after the other; and a gateway to hand over."""

PATIENCE = 30.0
"""Seconds that a restarted gateway may take before the restart of the others is given up."""


class Renewable(Protocol):
    """What gateways are forks of."""

    async def renew(self) -> bool:
        """Returns once forks have what is installed now. False: that wasn't possible in time, and
        they have what they had."""
        ...


class Rolling:
    """Restarts processes, at most one at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(
        self,
        gateways: Sequence[Child],
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        source: Renewable | None = None,
    ) -> None:
        """Starts a restart of `gateways`, which share the socket at host and port. source: what
        they are forks of, which is renewed first, as it holds what was installed before."""
        if self._task is not None and not self._task.done():
            log.warning("the gateways are being restarted already")
            return
        self._task = asyncio.create_task(_roll(gateways, host, port, tls, source))

    async def cancel(self) -> None:
        """Gives up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def _roll(
    gateways: Sequence[Child],
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    source: Renewable | None,
) -> None:
    """Each once its predecessor serves. New connections meanwhile go to the others, or wait in the
    socket, which the supervisor holds."""
    if source is not None and not await source.renew():
        log.error("not ready again", child="fork-server", seconds=PATIENCE)
        return
    for gateway in gateways:
        log.info("restarting", child=gateway.spec.name)
        await gateway.renew(ROLL)
        if not await _ready_again(gateway, host, port, tls):
            log.error("not ready again", child=gateway.spec.name, seconds=PATIENCE)
            return  # The others, which serve, are left as they are.
    log.info("gateways restarted", count=len(gateways))


async def _ready_again(gateway: Child, host: str, port: int, tls: ssl.SSLContext | None) -> bool:
    """Whether its successor is ready in time, or that one's where it has died."""
    with suppress(TimeoutError):
        await asyncio.wait_for(gateway_ready(host, port, lambda: gateway.pid, tls), PATIENCE)
        return True
    return False


# Waits until the system answers requests, asking as a client would.

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
