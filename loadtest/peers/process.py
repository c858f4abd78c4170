"""A server in a process group of its own: started, waited for, stopped with all its processes,
those too that made sessions of their own."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal

import psutil

from loadtest.peers.servers import Server
from penstock.bench.load.target import Target


class ServerFailed(RuntimeError):
    """The server ended or wasn't ready in time; the message ends with its last log lines."""


class RunningServer:
    """`with RunningServer(server, log) as running:` is ready inside the block.

    ready_s: seconds from the start to the first good answer of its ready path.
    """

    def __init__(self, server: Server, log: Path, stop_timeout: float = 20.0) -> None:
        self.server = server
        self.port = free_port()
        self.ready_s = 0.0
        self._log = log
        self._stop_timeout = stop_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[psutil.Process] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> RunningServer:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.server.command(self.port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.server.environment},
                start_new_session=True,
            )
        try:
            self._wait_until_ready(self._process, began + self.server.start_timeout)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - began
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def memory(self) -> int:
        """Bytes of all its processes, a shared page counted once (PSS)."""
        return sum(_proportional_size(process) for process in self._living())

    def stop(self) -> None:
        """SIGTERM to the group, SIGKILL to what lives after stop_timeout; returns when all are
        gone."""
        if self._process is None:
            return
        self.resume()
        if self._living():
            _signal_group(self._process.pid, signal.SIGTERM)
        deadline = time.monotonic() + self._stop_timeout
        while self._living() and time.monotonic() < deadline:
            time.sleep(0.05)
        while left := self._living():
            kill_all(left)
            time.sleep(0.02)
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Stops all its processes where they bear it: an idle engine's threads may spin."""
        if self.server.pausable:
            signal_all(self._living(), "suspend")

    def resume(self) -> None:
        if self.server.pausable:
            signal_all(self._living(), "resume")

    def _living(self) -> set[psutil.Process]:
        """The group, the descendants, and what was either before and lost its parent since."""
        if self._process is None:
            return set()
        self._process.poll()  # takes the leader's exit status, so that it is no zombie
        found = self._known | _group(self._process.pid)
        for process in list(found):
            try:
                found.update(process.children(recursive=True))
            except psutil.NoSuchProcess:
                pass
        self._known = {process for process in found if _lives(process)}
        return self._known

    def _wait_until_ready(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        target = Target.from_url(self.url)
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerFailed(
                    f"{self.server.name} ended with {process.returncode}:\n{self._last_lines()}"
                )
            if _answers(target, self.server.ready_path):
                return
            time.sleep(0.1)
        raise ServerFailed(
            f"{self.server.name} was not ready within {self.server.start_timeout:g} s:\n"
            f"{self._last_lines()}"
        )

    def _last_lines(self) -> str:
        text = self._log.read_bytes()[-4000:].decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-15:])


def free_port() -> int:
    """A loopback port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(target: Target, path: str) -> bool:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass  # all gone


def _group(number: int) -> set[psutil.Process]:
    members = set()
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == number:
                members.add(process)
        except ProcessLookupError:
            pass
    return members


def _lives(process: psutil.Process) -> bool:
    """A zombie doesn't, and neither does one whose number has gone to another process."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def signal_all(processes: Iterable[psutil.Process], action: Literal["suspend", "resume"]) -> None:
    """Those that still live."""
    for process in processes:
        try:
            process.suspend() if action == "suspend" else process.resume()
        except psutil.NoSuchProcess:
            pass


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Those that still live."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass


def _proportional_size(process: psutil.Process) -> int:
    try:
        size: int = process.memory_full_info().pss
    except psutil.Error:
        return 0
    return size
