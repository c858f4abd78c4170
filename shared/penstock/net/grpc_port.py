"""gRPC's port, as far as it is settled before its process starts."""

from __future__ import annotations

import importlib.util

import msgspec

from penstock.config.settings import ServeConfig
from penstock.errors import StartupError
from penstock.net import listener

FLAGS = ("--host", "--grpc-port")


def check_installed() -> None:
    """Raises StartupError where gRPC's packages are missing. Loads none of them."""
    # The parent of a dotted name would be loaded.
    if any(importlib.util.find_spec(name) is None for name in ("grpc", "grpc_reflection")):
        raise StartupError(
            "--grpc-port needs grpcio, which is not installed: pip install 'penstock[grpc]'"
        )


def with_free_port(config: ServeConfig) -> ServeConfig:
    """`config` with a port for gRPC that is free now where any will do: a process that is started
    again finds it again. Raises StartupError for a port that can't be had."""
    port = config.gateway.grpc_port
    if port is None:
        return config
    check_installed()
    with listener.bind(config.gateway.host, port, FLAGS) as probe:
        found = probe.getsockname()[1]
    gateway = msgspec.structs.replace(config.gateway, grpc_port=found)
    return msgspec.structs.replace(config, gateway=gateway)
