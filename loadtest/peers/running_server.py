"""A peer's server."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local import answers, free_port
from loadtest.peers.process import PeerProcess
from loadtest.peers.servers import Server


class ServerFailed(RuntimeError):
    """The server ended or wasn't ready in time; the message ends with its last log lines."""


class RunningServer(PeerProcess):
    """`with RunningServer(server, log) as running:` is ready inside the block: its ready path gives
    a good answer."""

    def __init__(self, server: Server, log: Path, stop_timeout: float = 20.0) -> None:
        super().__init__(
            log,
            pausable=server.pausable,
            start_timeout=server.start_timeout,
            stop_timeout=stop_timeout,
        )
        self.server = server
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        return self.server.command(self.port)

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, **self.server.environment}

    def wait_ready(self, deadline: float) -> None:
        name, process = self.server.name, self._process
        while time.monotonic() < deadline:
            if process is None or process.poll() is not None:
                status = None if process is None else process.returncode
                raise ServerFailed(f"{name} ended with {status}:\n{self.last_lines()}")
            if answers(self.url + self.server.ready_path):
                return
            time.sleep(0.1)
        raise ServerFailed(
            f"{name} was not ready within {self.server.start_timeout:g} s:\n{self.last_lines()}"
        )
