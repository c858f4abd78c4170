"""A PostgreSQL server of a test's or a measurement's own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from testing.serving import wait_until


def has_postgres() -> bool:
    """Whether this machine has one (Debian: postgresql)."""
    return shutil.which("initdb") is not None or bool(
        list(Path("/usr/lib/postgresql").glob("*/bin"))
    )


def program(name: str) -> str:
    """Debian keeps those of the server away from the PATH."""
    found = shutil.which(name)
    return found or str(max(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")))


class PostgresServer:
    """In a folder that it makes, which is not root's: it refuses to run as root. settings: of its
    configuration, NAME=VALUE."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        names = {each.pw_name for each in pwd.getpwall()}
        root = os.getuid() == 0
        self._as: dict[str, Any] = {"user": next(n for n in ("postgres", "nobody") if n in names)}
        self._as = self._as if root else {}
        folder.mkdir(mode=0o755)
        if root:
            shutil.chown(folder, self._as["user"])
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = int(listener.getsockname()[1])
        data = str(folder / "data")
        self._command = [program("postgres"), "-D", data, "-p", str(self.port)]
        for each in ("listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", *settings):
            self._command += ["-c", each]
        made = [program("initdb"), "-D", data, "-U", "penstock", "-A", "trust", "-N", "-E", "UTF8"]
        subprocess.run(made, check=True, capture_output=True, cwd=folder, **self._as)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://penstock@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """Of the process that starts the others. Raises RuntimeError where there is none."""
        if self.process is None:
            raise RuntimeError("the server doesn't run")
        return self.process.pid

    def start(self) -> None:
        """Waits until it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self.folder, **self._as
            )
        wait_until(self._answers)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url.replace("+psycopg", ""), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Whoever is connected is cut off. Idempotent."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As when the machine's memory is full: nothing is tidied up. Idempotent."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None
