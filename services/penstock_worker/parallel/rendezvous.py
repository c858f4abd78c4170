"""The TCP port that a worker reserves for the group's store, in case it becomes rank 0.

A port is bound when the worker names it in its Hello, and serves the forming of one group only. So
no rank can ever find what an earlier group left in its store.
"""

from __future__ import annotations

import socket
import threading

from penstock.errors import StartupError
from penstock_worker.parallel.errors import GroupLost

KNOCK_SECONDS = 1.0
"""Timeout of one connection attempt."""
BACKLOG = 128
"""Ranks that may be connecting at once."""


class Rendezvous:
    """Reserves a port and hands it over. All methods may be called from any thread."""

    def __init__(self, host: str) -> None:
        """`host` is the address at which other ranks reach this machine."""
        self.host = host
        self._lock = threading.Lock()
        self._kept: socket.socket | None = None

    def address(self) -> str:
        """Returns HOST:PORT, which stays bound from now on. Raises StartupError if the host is not
        an address of this machine."""
        with self._lock:
            if self._kept is None:
                self._kept = _bind(self.host)
            port = self._kept.getsockname()[1]
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def take(self, address: str) -> int:
        """Starts to listen at that address and returns the socket's file descriptor. The next call
        of `address` binds another port.

        Raises GroupLost if the address is not the one that is currently reserved.
        """
        if address != self.address():
            raise GroupLost(f"the rendezvous {address} is of an earlier session")
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is None:
            raise GroupLost(f"the rendezvous {address} was taken")
        # Not earlier: torch's client waits forever once it is connected and nobody answers.
        kept.listen(BACKLOG)
        return kept.detach()

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


def _bind(host: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family)
        bound.bind((host, 0))
    except OSError as error:
        raise StartupError(f"rank_host is {host}; no port can be had there: {error}") from error
    return bound


def answers(host: str, port: int) -> bool:
    """Returns whether something listens at that address."""
    try:
        socket.create_connection((host, port), KNOCK_SECONDS).close()
    except OSError:
        return False
    return True


def split_address(address: str) -> tuple[str, int]:
    """Splits HOST:PORT, where an IPv6 host is in brackets. Raises GroupLost if it is malformed."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise GroupLost(f"the rendezvous {address!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
