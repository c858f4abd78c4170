"""The admin port: a second server in the gateway's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from penstock.net import listener
from penstock.process import logs
from penstock_gateway.app import create_admin_app
from penstock_gateway.http.protocol import protocol_class
from penstock_gateway.http.server import AcceptingServer
from penstock_gateway.service import Service

log = logs.get(__name__)


class AdminServer(AcceptingServer):
    """Serves until it is asked to leave; signals are the main server's."""

    def __init__(self, service: Service) -> None:
        bound = service.config.max_header_bytes
        super().__init__(
            uvicorn.Config(
                create_admin_app(service),
                http=protocol_class(service.patience, max_head_bytes=bound),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
            ),
            service,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(service: Service, sock: socket.socket | None) -> AsyncIterator[None]:
    """Serves the admin port meanwhile. sock: None: there is none."""
    if sock is None:
        yield
        return
    server = AdminServer(service)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    tls = service.config.ssl_certfile is not None
    log.info("admin port", url=listener.url(*listener.reachable_address(sock), tls=tls))
    try:
        yield
    finally:
        server.should_exit = True
        await task
