"""Two real cells on this machine, behind haproxy or Envoy."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from deploy.local import Balancer, cells, free_port
from deploy.local_envoy import Envoy, envoy_cells
from testing.serving import Server, wait_until

FRONTS = {"haproxy": cells, "envoy": envoy_cells}
STARTING = 300.0
"""Seconds until both cells are in rotation."""


class RealCell:
    """`penstock serve`, with all of its processes. `with` stops it at the end.

    flags: of the command.
    """

    def __init__(self, flags: Sequence[str]) -> None:
        self._flags = [*flags, "--port", str(port := free_port())]
        self.address = f"127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        """Starts it, at the address that it had before. Returns when it is ready."""
        self._killed = False
        self._server = Server(*self._flags)

    def tokens(self) -> int:
        """Tokens that its engine core has generated, as it last said."""
        return int(self._server.get("/status")[1]["engine"]["tokens_generated"])

    def kill(self) -> int:
        """SIGKILL to every process. Returns how many there were, when all are gone."""
        top = psutil.Process(self._server.process.pid)
        family = [top, *top.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._server.process.wait()
        psutil.wait_procs(family, timeout=STARTING)
        self._killed = True
        self.close()
        return len(family)

    def close(self) -> None:
        """What was killed has left its sockets behind, which go with its folder."""
        with contextlib.suppress(*[AssertionError] if self._killed else []):
            self._server.close()

    def __enter__(self) -> RealCell:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._killed:
            self.close()


@contextlib.contextmanager
def in_front(name: str, two: Sequence[RealCell]) -> Iterator[Balancer | Envoy]:
    """A load balancer (of FRONTS) that has both cells in rotation. Raises NotThere."""
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        addresses = [each.address for each in two]
        with FRONTS[name](addresses, Path(folder)) as balancer:
            both = {"cell1": "UP", "cell2": "UP"}
            wait_until(lambda: balancer.servers() == both, STARTING, message=balancer.servers)
            yield balancer
