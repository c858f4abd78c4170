"""uvicorn, with our protocol class, our way of accepting and our way of leaving."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from penstock.net import listener
from penstock.net.tls import server_context
from penstock.process import logs
from penstock.supervisor.rolling import ROLL
from penstock_gateway.http.accepting import Acceptor
from penstock_gateway.http.protocol import protocol_class
from penstock_gateway.http.socket_protocol import protocol_class as protocol_class_of_sockets
from penstock_gateway.service import Service

log = logs.get(__name__)

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than clients and proxies commonly keep theirs,
so that it is they who close, and no request meets a closing connection."""
TICK = 0.1
"""Seconds between two looks at whether it is time to close. uvicorn counts in them, too."""
ONE_DAY = 864_000
MAX_MESSAGE = 1 << 20
"""Bytes of a message over a WebSocket: some 24 s of sound in base64."""
LAST_WORDS = 1.0
"""Seconds that cancelled requests get to tell their clients so."""


HAND_OVER = ROLL
"""Tells a gateway that others accept from its socket: it leaves the new connections to them."""


class AcceptingServer(uvicorn.Server):
    """Accepts from the sockets that it is given, as many connections as there is room for.

    config.http: a class that `protocol_class` made.  shared: other processes accept from the
    sockets, too.  Raises StartupError for a certificate that
    won't do.
    """

    def __init__(self, config: uvicorn.Config, service: Service, *, shared: bool = False) -> None:
        super().__init__(config)
        self._shared = shared
        self._tls = server_context(service.config)
        self._responses = service.responses
        self._head_seconds = service.patience.head

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.ssl = self._tls
        await super().startup([])
        for sock in sockets or ():
            acceptor = Acceptor(
                sock,
                self._protocol,
                self.config.http_protocol_class.idle,  # type: ignore[attr-defined]
                self._note_refusal,
                tls=self._tls,
                tls_seconds=self._head_seconds,
                shared=self._shared,
            )
            self.servers.append(acceptor)  # type: ignore[arg-type]

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    def _note_refusal(self) -> None:
        self._responses[503] += 1


class GatewayServer(AcceptingServer):
    """Serves until a signal asks it to leave. Raises StartupError for a certificate that won't do.

    SIGTERM and SIGINT: goes on accepting connections, refuses new work with 503, lets open
    requests finish within the shutdown timeout, tells the rest that it leaves, and returns.
    HAND_OVER: the same, but it accepts no more connections.  A second signal skips the waiting.
    first: what it waits for before it accepts connections, which wait in the sockets meanwhile.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        shared: bool = False,
        first: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._service: Service = app.state.service
        config = self._service.config
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_class(self._service.patience, max_head_bytes=config.max_header_bytes),
                ws=protocol_class_of_sockets(self._service.patience),
                ws_max_size=MAX_MESSAGE,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
            ),
            self._service,
            shared=shared,
        )
        self._patience = config.shutdown_timeout
        self._leave_at: float | None = None
        self._signalled = asyncio.Event()
        self._first = first

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._first is not None:
            await self._unless_signalled(self._first())
        if self.should_exit:
            return
        await super().startup(sockets)
        for sock in sockets or ():
            address = listener.reachable_address(sock)
            log.info("listening", url=listener.url(*address, tls=self._tls is not None))

    async def _unless_signalled(self, first: Coroutine[Any, Any, None]) -> None:
        """Waits for it, or for a signal."""
        tasks = [asyncio.create_task(each) for each in (first, self._until_signalled())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_signalled(self) -> None:
        await self._signalled.wait()

    async def main_loop(self) -> None:
        """uvicorn's own, but it doesn't sleep through a signal."""
        counter = 0
        while not await self.on_tick(counter):
            counter = (counter + 1) % ONE_DAY
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._signalled.wait(), TICK)
            self._signalled.clear()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second. Returns whether it is time to close."""
        drained = self._leave_at is not None and not self._service.open_requests
        return drained or self._time_left() <= 0 or await super().on_tick(counter)

    def _time_left(self) -> float:
        """Seconds that open requests still have."""
        return float("inf") if self._leave_at is None else self._leave_at - time.monotonic()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._drain()
        # The annotation says whole seconds; it is only ever used as a timeout.
        self.config.timeout_graceful_shutdown = max(0.0, self._time_left())  # type: ignore[assignment]
        await super().shutdown(sockets)
        tasks = set(self.server_state.tasks)
        if tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=LAST_WORDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaving on a signal is a normal end here, so the signal is not raised again."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT, HAND_OVER)
        for number in signals:
            loop.add_signal_handler(number, self._leave, number)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _leave(self, number: int = signal.SIGTERM) -> None:
        if self._service.draining:
            self.should_exit = self.force_exit = True
        elif number == HAND_OVER:
            self.should_exit = True
        self._drain()
        self._signalled.set()

    def _drain(self) -> None:
        if not self._service.draining:
            log.info("draining", open=self._service.open_requests, seconds=self._patience)
            self._service.draining = True
        if self._leave_at is None:
            self._leave_at = time.monotonic() + self._patience
