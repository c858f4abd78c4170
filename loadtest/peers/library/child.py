"""A runner's process: JSON lines in and out."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.peers.library.systems import System
from loadtest.peers.library.work import Run
from loadtest.peers.process import PeerProcess


class ChildFailed(RuntimeError):
    """The runner ended, was too slow or reported an error; the message says which."""


class Child(PeerProcess):
    """`with Child(system, log) as child:` has loaded its model inside the block."""

    def __init__(self, system: System, log: Path) -> None:
        super().__init__(log, pausable=system.pausable, start_timeout=system.start_timeout)
        self.system = system
        self._unread = b""

    def command(self) -> Sequence[str]:
        return self.system.command

    def environment(self) -> Mapping[str, str]:
        environment = {**os.environ, **self.system.environment}
        if self.system.name != "penstock":
            environment.pop("PYTHONPATH", None)
        return environment

    def wait_ready(self, deadline: float) -> None:
        self._answer(deadline)

    def ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        """Ends its input, which ends it."""
        try:
            process.stdin.close()  # type: ignore[union-attr]
        except OSError:
            pass

    def run(self, prompts: list[list[int]], output_tokens: int, timeout: float) -> Run:
        """Raises ChildFailed; after a timeout the process is of no use any more."""
        process = self._running()
        line = json.dumps({"prompts": prompts, "output_tokens": output_tokens}) + "\n"
        try:
            process.stdin.write(line.encode())  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        except OSError as error:
            raise ChildFailed(
                f"{self.system.name} has gone: {error}\n{self.last_lines()}"
            ) from error
        return Run(**self._answer(time.monotonic() + timeout))

    def _started(self, log: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=self.environment(),
            start_new_session=True,
        )

    def _answer(self, deadline: float) -> dict[str, Any]:
        process = self._running()
        descriptor = process.stdout.fileno()  # type: ignore[union-attr]
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise ChildFailed(f"{self.system.name} did not answer in time")
            chunk = os.read(descriptor, 65_536)
            if not chunk:
                raise ChildFailed(f"{self.system.name} has ended:\n{self.last_lines()}")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if error := answer.pop("error", None):
            raise ChildFailed(f"{self.system.name}: {error}")
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ChildFailed(f"{self.system.name} does not run")
        return self._process
