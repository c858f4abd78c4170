"""The port that a worker keeps for the store of a group whose rank 0 it may be.

A port is bound when it is named in a hello and serves one forming: what an earlier one left in its
store can't be met again.
"""

from __future__ import annotations

import socket
import threading

from penstock.errors import StartupError
from penstock_worker.parallel.errors import GroupLost

KNOCK_SECONDS = 1.0
BACKLOG = 128
"""Ranks that may knock at once."""


class Rendezvous:
    """host: the address at which other ranks reach this machine.  From any thread."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._lock = threading.Lock()
        self._kept: socket.socket | None = None

    def address(self) -> str:
        """HOST:PORT, bound from now on. Raises StartupError where the host isn't this machine's."""
        with self._lock:
            if self._kept is None:
                self._kept = _bind(self.host)
            port = self._kept.getsockname()[1]
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def take(self, address: str) -> int:
        """The file descriptor of what listens at that address; the next address is another."""
        if address != self.address():
            raise GroupLost(f"the rendezvous {address} is of an earlier session")
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is None:
            raise GroupLost(f"the rendezvous {address} was taken")
        # Not before: torch's client waits without end where it is let in and nobody answers.
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
    """Whether somebody listens there."""
    try:
        socket.create_connection((host, port), KNOCK_SECONDS).close()
    except OSError:
        return False
    return True


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT, an IPv6 host in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise GroupLost(f"the rendezvous {address!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
