"""A peer's processes: in a group of their own, paused, counted, and stopped with all that they have
started, those too that made sessions of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil


class PeerProcess:
    """The process of one peer; a `with` block has it from when it is ready.

    A subclass says what it is to be ready, in `wait_ready`.  Everything that it writes goes to
    `log`.
    """

    def __init__(
        self, log: Path, *, pausable: bool, start_timeout: float, stop_timeout: float = 20.0
    ) -> None:
        self.ready_s = 0.0  # seconds from the start until it was ready
        self._log = log
        self._pausable = pausable
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[psutil.Process] = set()

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        raise NotImplementedError

    def wait_ready(self, deadline: float) -> None:
        """deadline: of time.monotonic(). Raises where it isn't ready until then."""
        raise NotImplementedError

    def ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM to the group, where the peer knows no other way."""
        try:
            os.killpg(process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass  # all gone

    def __enter__(self) -> Any:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = self._started(log)
        try:
            self.wait_ready(began + self._start_timeout)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - began
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _started(self, log: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.environment(),
            start_new_session=True,
        )

    def memory(self) -> int:
        """Bytes of all its processes, a shared page counted once (PSS)."""
        return sum(_proportional_size(process) for process in self._living())

    def pause(self) -> None:
        """Stops all its processes where they bear it: an idle engine's threads may spin."""
        if self._pausable:
            self._signal("suspend")

    def resume(self) -> None:
        if self._pausable:
            self._signal("resume")

    def stop(self, grace: float | None = None) -> None:
        """Asks it to end, kills what lives after `grace` seconds (its stop timeout, if None), and
        returns when all are gone.  Idempotent."""
        process = self._process
        if process is None:
            return
        self._signal("resume")
        if self._living():
            self.ask_to_end(process)
        deadline = time.monotonic() + (self._stop_timeout if grace is None else grace)
        while self._living() and time.monotonic() < deadline:
            time.sleep(0.05)
        while left := self._living():
            for each in left:
                _if_there(each, "kill")
            time.sleep(0.02)
        process.wait()
        for stream in (process.stdin, process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass  # what it had not read
        self._process = None

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

    def _signal(self, action: Literal["suspend", "resume"]) -> None:
        for process in self._living():
            _if_there(process, action)

    def last_lines(self) -> str:
        """Of the log."""
        text = self._log.read_bytes()[-4000:].decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-15:])


def _if_there(process: psutil.Process, action: str) -> None:
    try:
        getattr(process, action)()
    except psutil.NoSuchProcess:
        pass


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


def _proportional_size(process: psutil.Process) -> int:
    try:
        size: int = process.memory_full_info().pss
    except psutil.Error:
        return 0
    return size
