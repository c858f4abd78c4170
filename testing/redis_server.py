"""A redis-server of a test's own."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path


def has_redis() -> bool:
    """Whether this machine has one (Debian: redis-server)."""
    return shutil.which("redis-server") is not None


class RedisServer:
    """Keeps nothing on disk, unless its options say otherwise. url: of its first database."""

    def __init__(self, folder: Path, *more: str) -> None:
        """more: options. Skips the test where there is none on this machine."""
        binary = shutil.which("redis-server")
        if binary is None:
            import pytest  # Measurements, which use this as well, do without.

            pytest.skip("no redis-server on this machine (Debian: apt-get install redis-server)")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        options += more
        self._command = [binary, *options]
        self.start()

    def start(self) -> None:
        """Starts it, empty, and again after `kill`."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    self.kill()
                    raise
                time.sleep(0.05)

    @property
    def pid(self) -> int:
        return self._process.pid

    def hang(self) -> None:
        """It takes connections, and answers nothing any more."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It answers again."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills it with SIGKILL. Idempotent."""
        self._process.kill()
        self._process.wait()
