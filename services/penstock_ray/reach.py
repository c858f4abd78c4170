"""Where a worker on a node dials the engine core, and whether it can."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.config.settings import TransportSettings
from penstock.transport.curve import is_loopback


class Unavailable(Exception):
    """The cluster, or a node of it, can't be used as it is. It may be otherwise later."""


_EVERY_INTERFACE = ("*", "0.0.0.0", "[::]")


def dialled_endpoint(endpoint: str, here: str) -> str:
    """What workers dial where the engine core listens at `endpoint`. here: this node's address."""
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host in _EVERY_INTERFACE:
        return f"tcp://{here}:{port}"
    return endpoint


def check_reach(endpoint: str, node: str, here: str, rank: int) -> None:
    """Raises Unavailable where a rank on the node with address `node` can't dial `endpoint`."""
    stays = endpoint.startswith("ipc://") or is_loopback(endpoint)
    if node == here or not stays:
        return
    raise Unavailable(
        f"rank {rank} is on the node {node}, and the engine core listens for workers on this"
        f" machine ({here}) only: say --worker-endpoint tcp://{here}:PORT, and --curve-dir"
        " (`penstock curve-keys`; its worker's folder on every node) or, on a trusted network,"
        " --allow-plain-tcp"
    )


def worker_transport(transport: TransportSettings) -> TransportSettings:
    """Returns the engine core's settings for its workers: they have a folder of keys of their own,
    which `penstock curve-keys` puts next to the engine core's."""
    if transport.curve_dir is None:
        return transport
    folder = Path(transport.curve_dir).resolve().parent / "worker"
    return msgspec.structs.replace(transport, curve_dir=str(folder))
