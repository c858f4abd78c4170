"""The process that answers gRPC: a gateway whose socket speaks HTTP/2."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from fastapi import FastAPI
from grpc.aio import Server

from penstock.config.settings import GatewayConfig, ServeConfig
from penstock.errors import StartupError
from penstock.net import listener
from penstock.net.exposure import check_exposure
from penstock.net.listener import GRPC_FLAGS
from penstock.net.tls import server_context
from penstock.process import logs
from penstock_gateway.adapters.loading import AdapterFolders
from penstock_gateway.app import create_app
from penstock_gateway.chat.output_parsing import check_parsers
from penstock_gateway.http import access_log
from penstock_gateway.http.accepting import reserve_of
from penstock_gateway.models.reach import ReachedModels, reach_models
from penstock_gateway.process import COLLECT_AFTER
from penstock_gateway.service import Service
from penstock_gateway.storage.store import Store
from penstock_gateway.system.admin import serving
from penstock_rpc.calls import Calls
from penstock_rpc.exchange import RunningCalls, all_ended
from penstock_rpc.services import handlers_of, open_methods, routes_of

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
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
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


# grpcio's server, with our bounds.

MAX_MESSAGE = 1 << 22
"""Bytes: grpcio copies a message in one turn, 4 MiB in some 10 ms. gRPC has the same by default."""
_PING_EVERY_MS = 60_000
_PING_PATIENCE_MS = 20_000
"""A client that answers no ping is gone, and its requests are aborted."""
_IDLE_MS = 15 * 60_000
"""A connection without calls is closed then; clients open another one when they need it."""


class RpcServer:
    """Listens when it is made. Raises StartupError where that can't be."""

    def __init__(self, calls: Calls, config: GatewayConfig) -> None:
        self.most_connections = most_connections()
        """More are closed as they come: without a bound, grpcio takes the last descriptor, and the
        process can then open nothing else. None: there may be any number."""
        self._server = _bounded(calls, config, self.most_connections)
        self._server.add_generic_rpc_handlers((_Router(calls),))
        address = _numeric(config)
        credentials = _credentials(config)
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise StartupError(f"gRPC can't listen on {address}: {error}") from None
        self.address = f"{address.rpartition(':')[0]}:{self.port}"
        self._patience = config.shutdown_timeout

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        """Takes no more calls, and lets those that run finish within the shutdown timeout."""
        await self._server.stop(self._patience)


class _Router(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._handlers = handlers_of(calls)
        self._open = open_methods(calls.service)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is None or method in self._open:
            return handler
        known = self._calls.knows(handler_call_details.invocation_metadata)
        return handler if known else self._calls.refusing(method)


def most_connections() -> int | None:
    """Returns for how many connections this process has file descriptors, after those that are in
    use by now and a reserve; None: any number."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    with socket.socket() as next_one:  # It gets the lowest free number.
        return max(1, limit - reserve_of(limit) - next_one.fileno())


def _bounded(calls: Calls, config: GatewayConfig, connections: int | None) -> Server:
    bound = [] if connections is None else [("grpc.max_allowed_incoming_connections", connections)]
    head_ms = round(1000 * calls.service.patience.head)
    return grpc.aio.server(
        maximum_concurrent_rpcs=config.grpc_max_calls,
        options=(
            *bound,
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", min(config.max_body_bytes, MAX_MESSAGE)),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", config.max_header_bytes),
            ("grpc.absolute_max_metadata_size", config.max_header_bytes),
            ("grpc.max_concurrent_streams", config.grpc_max_calls),
            ("grpc.server_handshake_timeout_ms", head_ms),
            ("grpc.keepalive_time_ms", _PING_EVERY_MS),
            ("grpc.keepalive_timeout_ms", _PING_PATIENCE_MS),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
        ),
    )


def _numeric(config: GatewayConfig) -> str:
    """Host and port as an address. Raises StartupError where it can't be listened at."""
    port = config.grpc_port or 0
    with listener.bind(config.host, port, GRPC_FLAGS) as probe:
        host = probe.getsockname()[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _credentials(config: GatewayConfig) -> grpc.ServerCredentials | None:
    """The certificate of HTTPS. Raises StartupError for one that won't do."""
    if server_context(config) is None or config.ssl_certfile is None:
        return None
    certificate = Path(config.ssl_certfile).read_bytes()
    key = certificate if config.ssl_keyfile is None else Path(config.ssl_keyfile).read_bytes()
    return grpc.ssl_server_credentials([(key, certificate)])
