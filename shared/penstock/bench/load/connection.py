"""One request over one connection of its own: an asyncio protocol, so that a chunk costs one
callback and no task switch."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from penstock.bench.load.reception import Reception
from penstock.bench.load.record import ErrorKind, RequestRecord
from penstock.bench.load.target import Target

# Seconds that a server gets to end its response after [DONE]: closing at once would look to it
# like a client that left in mid-stream.
_LINGER = 1.0


class _StreamProtocol(asyncio.Protocol):
    def __init__(self, request: bytes, reception: Reception, done: asyncio.Future[None]) -> None:
        self._request = request
        self._reception = reception
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        reception = self._reception
        reception.feed(data, time.perf_counter())
        if reception.drained:
            self._close()
        elif reception.finished and self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(_LINGER, self._close)

    def eof_received(self) -> bool:
        self._reception.end(time.perf_counter())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._reception.end(time.perf_counter())
        self._close()

    def _close(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        if not self._done.done():
            self._done.set_result(None)
        if self._transport is not None:
            self._transport.close()


async def send(
    target: Target,
    request: bytes,
    record: RequestRecord,
    *,
    timeout: float,
    exact_length: bool = False,
) -> None:
    """Sends `request`, fills `record`, and never raises but for cancellation.

    timeout: seconds from now to the answer's end. A cancelled request is recorded as CUT_OFF.
    """
    loop = asyncio.get_running_loop()
    reception = Reception(record, exact_length=exact_length)
    transport: asyncio.Transport | None = None
    record.sent = time.perf_counter()
    try:
        async with asyncio.timeout(timeout):
            done: asyncio.Future[None] = loop.create_future()
            transport, _ = await loop.create_connection(
                lambda: _StreamProtocol(request, reception, done),
                target.host,
                target.port,
                ssl=target.context,
            )
            await done
    except TimeoutError:
        if not reception.finished:
            late = ErrorKind.TIMEOUT_STREAM if record.arrivals else ErrorKind.TIMEOUT_FIRST
            record.fail(late, f"no end after {timeout:g} s")
    except OSError as error:
        record.fail(ErrorKind.CONNECT, repr(error))
    except asyncio.CancelledError:
        if not reception.finished:
            record.fail(ErrorKind.CUT_OFF, "the run's time was over")
        raise
    finally:
        reception.finished = True
        if record.ended is None:
            record.ended = time.perf_counter()
        if transport is not None:
            transport.abort()
