"""Where the ranks of a model give their parts of blocks away."""

from __future__ import annotations

from penstock.errors import StartupError

MAX_PORT = 65_535


def rank_endpoint(setting: str, endpoint: str, rank: int) -> str:
    """Returns a rank's endpoint, made of its engine core's, which is that of rank 0. Others have
    the ports after it, or its path with their number at the end. Raises StartupError."""
    if not rank:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}.{rank}"
    host, _, port = endpoint.rpartition(":")
    if int(port) + rank > MAX_PORT:
        raise StartupError(f"{setting} is {endpoint}: there is no port for rank {rank} behind it")
    return f"{host}:{int(port) + rank}"
