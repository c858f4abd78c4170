"""The HTTP socket: bound once by the supervisor, accepted from by every gateway. And how many
connections a process may have."""

from __future__ import annotations

import errno
import importlib.util
import resource
import socket

import msgspec

from penstock.config.settings import ServeConfig
from penstock.errors import StartupError

BACKLOG = 2048
WANTED_FILES = 65_536
"""Open files, each connection being one."""


HTTP_FLAGS = ("--host", "--port")


def bind(host: str, port: int, flags: tuple[str, str] = HTTP_FLAGS) -> socket.socket:
    """A TCP socket bound to host and port (0: any free port), not yet listening.

    flags: that said which. Raises StartupError naming the port: taken, not allowed, or no such
    address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StartupError(f"{flags[0]} {host}: no such address ({error.strerror})") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    # Lets a restart take the port while old connections linger; a live listener still refuses us.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise StartupError(_why(error, host, port, flags[1])) from None
    return listener


def _why(error: OSError, host: str, port: int, flag: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken by another program; "
            f"choose another one with {flag}, or {flag} 0 for any free one"
        )
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more rights than this user has; choose one above 1023"
    return f"can't listen on {host} port {port}: {error.strerror}"


def reachable_address(listener: socket.socket) -> tuple[str, int]:
    """Host and port at which this machine reaches the socket (a wildcard becomes loopback)."""
    host, port = listener.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


def url(host: str, port: int, *, tls: bool = False) -> str:
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def raise_file_limit() -> None:
    """Lets this process hold as many connections as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# gRPC's port, as far as it is settled before its process starts.

GRPC_FLAGS = ("--host", "--grpc-port")


def check_installed() -> None:
    """Raises StartupError where gRPC's packages are missing. Loads none of them."""
    # The parent of a dotted name would be loaded.
    if any(importlib.util.find_spec(name) is None for name in ("grpc", "grpc_reflection")):
        raise StartupError(
            "--grpc-port needs grpcio, which is not installed: pip install 'penstock-llm[grpc]'"
        )


def with_free_port(config: ServeConfig) -> ServeConfig:
    """`config` with a port for gRPC that is free now where any will do: a process that is started
    again finds it again. Raises StartupError for a port that can't be had."""
    port = config.gateway.grpc_port
    if port is None:
        return config
    check_installed()
    with bind(config.gateway.host, port, GRPC_FLAGS) as probe:
        found = probe.getsockname()[1]
    gateway = msgspec.structs.replace(config.gateway, grpc_port=found)
    return msgspec.structs.replace(config, gateway=gateway)
