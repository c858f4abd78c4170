"""A peer, the work that it gets, and its processes: in a group of their own, paused, counted, and
stopped with all that they have started, those too that made sessions of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

GRACE = 20.0
"""Seconds that a process has to end when it is asked to."""


class PeerFailed(RuntimeError):
    """A peer ended, was too slow or reported an error; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Peer(ABC):
    """A server or a library, ours or another's."""

    name: str
    version: str
    command: list[str]  # of its process
    note: str = ""
    environment: dict[str, str] = field(default_factory=dict)  # beside this process's
    start_timeout: float = 300.0  # seconds
    one_stream: bool = False  # it answers one request at a time
    pausable: bool = True  # its processes bear being stopped while another peer computes

    @abstractmethod
    def process(self, log: Path) -> PeerProcess:
        """A process of its own, not started yet. log: the file of what it writes."""

    def takes(self, work: Workload) -> bool:
        return not (self.one_stream and work.at_once)

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "note": self.note,
            "environment": self.environment,
            "one_stream": self.one_stream,
        }


class Workload:
    """A piece of work, the same for every peer."""

    name: str
    streams: int

    @property
    def at_once(self) -> bool:
        """Whether it is nothing for a peer that answers one request at a time."""
        return self.streams > 1

    def fault(self, run: Any) -> str | None:
        """What makes a run no result; None for a good one."""
        return None

    def too_slow(self, run: Any) -> bool:
        """Whether it took so long that the peer does it once, not in every round."""
        return False


class PeerProcess(ABC):
    """The process of one peer; a `with` block has it from when it is ready.

    log: the file of what it writes.  talks: whether its input and output are pipes; it ends with
    its input then.
    """

    def __init__(self, peer: Peer, command: list[str], log: Path, *, talks: bool = False) -> None:
        self.ready_s = 0.0  # seconds from the start until it was ready
        self._peer = peer
        self._command = command
        self._log = log
        self._talks = talks
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[psutil.Process] = set()

    @abstractmethod
    def wait_ready(self, deadline: float) -> None:
        """deadline: of time.monotonic(). Raises PeerFailed where it isn't ready until then."""

    @abstractmethod
    def warm_up(self, work: Any) -> None:
        """Prepares the first run of this work. Raises PeerFailed."""

    @abstractmethod
    def run(self, work: Any, turn: int) -> Any:
        """What a piece of work took. Raises PeerFailed; the process is of no use any more then."""

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE if self._talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._talks else log,
                stderr=log,
                env={**os.environ, **self._peer.environment},
                start_new_session=True,
            )
        try:
            self.wait_ready(began + self._peer.start_timeout)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - began
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def memory(self) -> int:
        """Bytes of all its processes, a shared page counted once (PSS)."""
        total = 0
        for process in self._living():
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def pause(self) -> None:
        """Stops all its processes where they bear it: an idle engine's threads may spin."""
        if self._peer.pausable:
            self._each("suspend")

    def resume(self) -> None:
        if self._peer.pausable:
            self._each("resume")

    def stop(self, grace: float = GRACE) -> None:
        """Asks it to end, kills what lives after `grace` seconds, and returns when all are gone.
        Idempotent."""
        process = self._process
        if process is None:
            return
        self._each("resume")
        self._ask_to_end(process)
        deadline = time.monotonic() + grace
        while self._living() and time.monotonic() < deadline:
            time.sleep(0.05)
        while self._living():
            self._each("kill")
            time.sleep(0.02)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def last_lines(self) -> str:
        """The last lines of the log."""
        text = self._log.read_bytes()[-4000:].decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-15:])

    @staticmethod
    def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
        if process.stdin is None:
            with suppress(ProcessLookupError):  # all gone
                os.killpg(process.pid, signal.SIGTERM)
        else:
            with suppress(OSError):  # what it had not read
                process.stdin.close()

    def _each(self, action: str) -> None:
        for process in self._living():
            with suppress(psutil.NoSuchProcess):
                getattr(process, action)()

    def _living(self) -> set[psutil.Process]:
        """The group, the descendants, and what was either before and lost its parent since."""
        if self._process is None:
            return set()
        self._process.poll()  # takes the leader's exit status, so that it is no zombie
        found = self._known | _group(self._process.pid)
        for process in list(found):
            with suppress(psutil.NoSuchProcess):
                found.update(process.children(recursive=True))
        self._known = {process for process in found if _lives(process)}
        return self._known


def _group(number: int) -> set[psutil.Process]:
    members = set()
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == number:
                members.add(process)
    return members


def _lives(process: psutil.Process) -> bool:
    """A zombie doesn't, and neither does one whose number has gone to another process."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
