"""A gateway process: the engine client, the application, and the HTTP server around it."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from collections.abc import Callable
from functools import cache

from fastapi import FastAPI

from penstock.config.settings import (
    GatewayConfig,
    MediaSettings,
    ModelsSettings,
    StorageSettings,
    TransportSettings,
)
from penstock.net import listener
from penstock.net.exposure import check_exposure
from penstock.net.tls import server_context
from penstock.process import logs
from penstock.process.memory import collect_seldom
from penstock.process.start_phases import START
from penstock_gateway.adapters.loading import AdapterFolders
from penstock_gateway.app import create_app
from penstock_gateway.chat.output_parsing import check_parsers
from penstock_gateway.http import access_log
from penstock_gateway.http.server import GatewayServer
from penstock_gateway.models.reach import ReachedModels, reach_models
from penstock_gateway.service import Service
from penstock_gateway.storage.store import Store
from penstock_gateway.system.admin import serving

log = logs.get(__name__)

COLLECT_EVERY = 1.0
"""Seconds between collections of what is younger. What failed or took long leaves cycles, and they
outlive the youngest generation with their request: next to a client whose large bodies are refused,
those of half a minute, 40,000 objects, held up every stream for 123 ms."""

COLLECT_ALL_EVERY = 30.0
"""Seconds between collections of everything, at least: by Python's own rule cycles lay for many
minutes, 5 MB more of them each minute with 500 open streams."""

LEAST_APART = 500
"""Durations of such a collection that pass before the next one. It looks at all open streams: with
a thousand of them it takes 0.2 s, in which nothing is sent."""


def main(
    engine_endpoint: str,
    config: GatewayConfig,
    index: int = 0,
    fd: int | None = None,
    *,
    transport: TransportSettings | None = None,
    media: MediaSettings | None = None,
    adapter_folder: str | None = None,
    cache_dir: str | None = None,
    gateways: int = 1,
    storage: StorageSettings | None = None,
    models: ModelsSettings | None = None,
    models_socket: str | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, with or without an engine core to talk to.

    fd: a bound socket to accept from; None: bind the configured host and port.  gateways: how many
    share the work.  storage: where files and batches lie.  models: of a server with several.
    models_socket: of the supervisor that starts and ends them.

    Raises StartupError when that is not possible, or when it would be open to everybody unasked.
    """
    check_parsers(config)
    server_context(config)
    if config.access_log != "off":
        access_log.setup(f"gateway {index}", config.access_log)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    listener.raise_file_limit()
    collect_seldom()
    sock = socket.socket(fileno=fd) if fd is not None else listener.bind(config.host, config.port)
    reached = reach_models(
        engine_endpoint,
        config,
        name=f"gateway {index}",
        transport=transport,
        folders=AdapterFolders(allowed=adapter_folder, cache=cache_dir),
        models=models,
        socket=models_socket,
    )
    store = Store.of(storage or StorageSettings())
    app = create_app(reached.backends, config, gateways=gateways, media=media, store=store)
    has_keys, has_grpc = app.state.service.ring is not None, config.grpc_port is not None
    check_exposure(config, _address(sock), has_keys=has_keys)
    shared = fd is not None and gateways - has_grpc > 1
    admin = None
    if config.admin_port is not None:
        # Port 0 is any free one for each.
        admin = listener.bind(config.host, config.admin_port and config.admin_port + index)
    START.passed("application")
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(reached, app, sock, admin, shared=shared))


@cache
def make_ahead() -> None:
    """Makes once what every gateway makes when it starts, for the process that they are forks of,
    and throws it away: they have what it left, which are types that were looked through, patterns
    that were compiled, modules that were imported."""
    app = create_app([], GatewayConfig())
    GatewayServer(app).config.load()
    _loop_factory()
    app.state.service.close()


async def _serve(
    models: ReachedModels,
    app: FastAPI,
    sock: socket.socket,
    admin: socket.socket | None,
    *,
    shared: bool,
) -> None:
    service: Service = app.state.service
    server = GatewayServer(app, shared=shared, first=models.first_sessions)
    await models.start()
    collecting = asyncio.create_task(_collect())
    watching = asyncio.create_task(service.ring.watch()) if service.ring is not None else None
    try:
        async with serving(service, admin):
            await server.serve(sockets=[sock])
    finally:
        collecting.cancel()
        if watching is not None:
            watching.cancel()
        await models.close()
        await service.leave()
        if service.store is not None:
            service.store.close()
    log.info("left")


async def _collect() -> None:
    due = time.monotonic() + COLLECT_ALL_EVERY
    while True:
        await asyncio.sleep(COLLECT_EVERY)
        begun = time.monotonic()
        if begun < due:
            gc.collect(1)
            continue
        gc.collect()
        ended = time.monotonic()
        due = ended + max(COLLECT_ALL_EVERY, LEAST_APART * (ended - begun))


def _address(sock: socket.socket) -> str:
    name = sock.getsockname()
    return name[0] if isinstance(name, tuple) else ""


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
