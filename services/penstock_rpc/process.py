"""The process that answers gRPC: a gateway whose socket speaks HTTP/2."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from penstock.config.settings import ServeConfig
from penstock.net import listener
from penstock.net.exposure import check_exposure
from penstock.net.listener import GRPC_FLAGS
from penstock.process import logs
from penstock.process.memory import collect_seldom
from penstock_gateway.adapters.loading import AdapterFolders
from penstock_gateway.app import create_app
from penstock_gateway.chat.output_parsing import check_parsers
from penstock_gateway.http import access_log
from penstock_gateway.models.reach import ReachedModels, reach_models
from penstock_gateway.service import Service
from penstock_gateway.storage.store import Store
from penstock_gateway.system.admin import serving
from penstock_rpc.calls import Calls
from penstock_rpc.exchange import RunningCalls, all_ended
from penstock_rpc.server import RpcServer
from penstock_rpc.services import routes_of

log = logs.get(__name__)

POLL_INTERVAL = 0.05
"""Seconds between looks at whether a request would be served."""
LAST_WORDS = 1.0
"""Seconds that requests get to end by themselves whose calls are over."""


def main(
    engine_endpoint: str,
    config: ServeConfig,
    ready_file: Path | None = None,
    models_socket: str | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, with or without an engine core to talk to. ready_file: made
    when a request would be served for the first time.  models_socket: of the supervisor, where it
    starts and ends models.

    Raises StartupError when that is not possible, or when it would be open to everybody unasked.
    """
    gateway = config.gateway
    check_parsers(gateway)
    if gateway.access_log != "off":
        access_log.setup("grpc", gateway.access_log)
    listener.raise_file_limit()
    collect_seldom()
    with asyncio.Runner() as runner:
        runner.run(_serve(engine_endpoint, config, ready_file, models_socket))


async def _serve(
    engine_endpoint: str, config: ServeConfig, ready_file: Path | None, models_socket: str | None
) -> None:
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    models, app, running = _application(engine_endpoint, config, models_socket)
    service: Service = app.state.service
    _check_open(config, service)
    server = RpcServer(Calls(app, service, running), config.gateway)
    admin = None
    if config.gateway.admin_port is not None:
        # After those of the gateways; 0 is any free one.
        number = config.gateway.admin_port and config.gateway.admin_port + config.gateways
        admin = listener.bind(config.gateway.host, number)
    await models.start()
    tasks = [asyncio.create_task(_tell_ready(service, ready_file))]
    if service.ring is not None:
        tasks.append(asyncio.create_task(service.ring.watch()))
    try:
        async with serving(service, admin):
            await _unless(stopped, models.first_sessions())
            await server.start()
            most = server.most_connections
            log.info("listening", address=server.address, grpc=True, most_connections=most)
            await stopped.wait()
            log.info("draining", open=service.open_requests)
            service.draining = True
            await server.stop()
            await all_ended(LAST_WORDS)
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await models.close()
        await service.leave()
        if service.store is not None:
            service.store.close()
    log.info("left")


async def _unless(stopped: asyncio.Event, first: Coroutine[Any, Any, None]) -> None:
    """Waits for it, or for the end. Connections wait in the socket, which is bound."""
    tasks = [asyncio.create_task(each) for each in (first, stopped.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _tell_ready(service: Service, file: Path | None) -> None:
    while service.unready_reason() is not None:
        await asyncio.sleep(POLL_INTERVAL)
    if file is not None:
        file.touch()


def _application(
    engine_endpoint: str, config: ServeConfig, models_socket: str | None
) -> tuple[ReachedModels, FastAPI, RunningCalls]:
    engine, gateway = config.engine, config.gateway
    models = reach_models(
        engine_endpoint,
        gateway,
        name="grpc",
        transport=engine.transport,
        folders=AdapterFolders(
            allowed=engine.lora.lora_allowed_folder, cache=engine.model.cache_dir
        ),
        models=config.models,
        socket=models_socket,
    )
    running = RunningCalls()
    app = create_app(
        models.backends,
        gateway,
        gateways=config.doors,
        media=engine.media,
        store=Store.of(config.storage),
        more=lambda service: routes_of(service, running),
    )
    return models, app, running


def _check_open(config: ServeConfig, service: Service) -> None:
    with listener.bind(config.gateway.host, 0, GRPC_FLAGS) as probe:
        check_exposure(config.gateway, probe.getsockname()[0], has_keys=service.ring is not None)
