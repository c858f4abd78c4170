"""uvicorn, with our protocol class and our way of leaving."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from penstock import logs
from penstock.supervisor import listener
from penstock_gateway.http_protocol import protocol_class
from penstock_gateway.service import Service

log = logs.get(__name__)

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than clients and proxies commonly keep theirs,
so that it is they who close, and no request meets a closing connection."""
BACKLOG = 4096
LAST_WORDS = 1.0
"""Seconds that cancelled requests get to tell their clients so."""


class GatewayServer(uvicorn.Server):
    """Serves until SIGTERM or SIGINT; then refuses new connections, lets open requests finish
    within the shutdown timeout, tells the rest that it leaves, and returns. A second signal skips
    the waiting."""

    def __init__(self, app: FastAPI) -> None:
        self._service: Service = app.state.service
        config = self._service.config
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_class(self._service.patience),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                backlog=BACKLOG,
            )
        )
        # The annotation says whole seconds; it is only ever used as a timeout.
        self.config.timeout_graceful_shutdown = config.shutdown_timeout

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            log.info("listening", url=listener.url(*listener.reachable_address(sock)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.draining = True
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
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._leave)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _leave(self) -> None:
        if self.should_exit:
            self.force_exit = True
        self._service.draining = True
        self.should_exit = True
