"""grpcio's server, with our bounds."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import grpc
from grpc.aio import Server

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock.net import listener
from penstock.net.listener import GRPC_FLAGS
from penstock.net.tls import server_context
from penstock_gateway.http.accepting import reserve_of
from penstock_rpc.calls import Calls
from penstock_rpc.services import handlers_of, open_methods

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
