"""The process that works through batches: a gateway without a socket."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from contextlib import suppress
from functools import partial

from penstock.config.settings import ServeConfig
from penstock.errors import StartupError
from penstock.net import listener
from penstock.net.exposure import check_exposure
from penstock.process import logs
from penstock_gateway.adapters.loading import AdapterFolders
from penstock_gateway.app import create_app
from penstock_gateway.batches.background import BackgroundRunner
from penstock_gateway.batches.runner import Runner, caller_of
from penstock_gateway.models.reach import reach_models
from penstock_gateway.service import Service
from penstock_gateway.storage.store import Store
from penstock_gateway.system.admin import serving

log = logs.get(__name__)


def main(engine_endpoint: str, config: ServeConfig, models_socket: str | None = None) -> None:
    """Works until SIGTERM or SIGINT. models_socket: of the supervisor, where it starts and ends
    models.  Raises StartupError."""
    store = Store.of(config.storage)
    if store is None:
        raise StartupError("batches need --data-dir")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    gc.freeze()
    try:
        asyncio.run(_work(engine_endpoint, config, store, models_socket))
    finally:
        store.close()


async def _work(
    engine_endpoint: str, config: ServeConfig, store: Store, models_socket: str | None
) -> None:
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    engine = config.engine
    models = reach_models(
        engine_endpoint,
        config.gateway,
        name="batches",
        transport=engine.transport,
        folders=AdapterFolders(
            allowed=engine.lora.lora_allowed_folder, cache=engine.model.cache_dir
        ),
        models=config.models,
        socket=models_socket,
    )
    app = create_app(
        models.backends,
        config.gateway,
        gateways=config.gateways,
        media=engine.media,
        store=store,
    )
    service: Service = app.state.service
    admin = _admin_socket(config, service)
    await models.start()
    watching = asyncio.create_task(service.ring.watch()) if service.ring is not None else None
    runner = Runner(store, app, service.ring, longest_line=config.gateway.max_body_bytes)
    service.lines = runner.counts
    running = [asyncio.create_task(runner.run())]
    if store.background is not None:
        responses = BackgroundRunner(
            store.background,
            app,
            partial(caller_of, service.ring, background=False),
            at_once=store.settings.background_concurrency,
        )
        running.append(asyncio.create_task(responses.run()))
    waiting = asyncio.create_task(stopped.wait())
    try:
        async with serving(service, admin):
            await asyncio.wait((*running, waiting), return_when=asyncio.FIRST_COMPLETED)
        for each in running:
            if each.done():
                each.result()
    finally:
        for task in (*running, waiting, watching):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await models.close()
        service.media.close()
        if service.tracing is not None:
            await service.tracing.close()
    log.info("left")


def _admin_socket(config: ServeConfig, service: Service) -> socket.socket | None:
    """For /metrics and /health/live, after those of gateways and gRPC's process; None: none is
    asked for. Raises StartupError where it would be open to everybody unasked."""
    port = config.gateway.admin_port
    if port is None:
        return None
    sock = listener.bind(config.gateway.host, port and port + config.doors)
    check_exposure(config.gateway, sock.getsockname()[0], has_keys=service.ring is not None)
    return sock
