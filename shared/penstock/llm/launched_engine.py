"""The engine core and worker that a library object starts for itself, in a supervised child."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
import weakref
from contextlib import nullcontext
from typing import IO, Any

import msgspec

from penstock.config.settings import EngineConfig, ServeConfig
from penstock.errors import StartupError
from penstock.net.runtime_dir import RuntimeDir

STOP_GRACE = 10.0
"""Seconds that the supervisor gets to stop its children before it is killed."""

LOG_FILE = "engine.log"
TAIL = 4000
"""Bytes."""


class _Report(msgspec.Struct):
    ready: bool = False
    error: str | None = None


_made: weakref.WeakSet[LaunchedEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in _made:
        engine.forget()


os.register_at_fork(after_in_child=_after_fork)


class LaunchedEngine:
    """Runs `penstock serve --no-http` as a child of this process.

    The child exits when this process does, however it ends. So it must be started from a thread
    that lives as long as the engine is needed.  endpoint: where its engine core accepts front ends.
    log: a file for its processes' logs; default: a temporary one, whose end is shown if it exits
    without giving a reason.
    """

    def __init__(self, config: EngineConfig, *, log: IO[Any] | None = None) -> None:
        self._pid = os.getpid()
        # What a killed program left of its own is swept by this, too.
        self._runtime = RuntimeDir.create()
        self.endpoint = self._runtime.endpoint("engine")
        settings = msgspec.json.encode(ServeConfig(engine=config))
        try:
            config_file = self._runtime.write("config.json", settings)
        except StartupError:
            self._runtime.remove()
            raise
        self._log = self._runtime.path / LOG_FILE if log is None else None
        reading, writing = os.pipe()
        self._report_fd = reading
        command = [sys.executable, "-m", "penstock", "serve", "--no-http"]
        command += ["--frontend-endpoint", self.endpoint, "--config", str(config_file)]
        command += ["--report-fd", str(writing)]
        try:
            with nullcontext(log) if self._log is None else self._log.open("wb") as stderr:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stderr=stderr,
                    pass_fds=[writing],
                    start_new_session=True,
                )
        except OSError as error:
            os.close(reading)
            self._runtime.remove()
            raise StartupError(f"the engine can't be started: {error}") from error
        finally:
            os.close(writing)
        _made.add(self)

    def forget(self) -> None:
        """For a child of os.fork(): its copy of the pipe would keep the engine running after the
        end of the process that owns it."""
        if self._report_fd >= 0:
            os.close(self._report_fd)
            self._report_fd = -1

    def wait_ready(self, timeout: float) -> None:
        """Blocks until the model is served. Raises StartupError with the child's reason."""
        deadline = time.monotonic() + timeout
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._report_fd], [], [], left)[0]:
                raise StartupError(f"the engine was not ready within {timeout:g} s")
            chunk = os.read(self._report_fd, 65_536)
            if not chunk:
                raise StartupError(f"the engine left before it was ready{self._last_words()}")
            line += chunk
        report = msgspec.json.decode(line, type=_Report)
        if not report.ready:
            raise StartupError(report.error or "the engine could not start")

    def _last_words(self) -> str:
        """The end of its log, where nobody else has it."""
        if self._log is None:
            return "; see its log"
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - TAIL))
            return "; the end of its log:\n" + file.read().decode(errors="replace").rstrip()

    def stop(self) -> None:
        """Stops the child and all processes below it. Idempotent; does nothing in a child of
        os.fork(), to which the engine doesn't belong."""
        if os.getpid() != self._pid:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._report_fd >= 0:
            os.close(self._report_fd)
            self._report_fd = -1
        self._runtime.remove()
