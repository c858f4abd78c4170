"""A runner's process: JSON lines in and out."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from loadtest.peers.library.systems import System
from loadtest.peers.library.work import Run
from loadtest.peers.process import kill_all, signal_all


class ChildFailed(RuntimeError):
    """The runner ended, was too slow or reported an error; the message says which."""


class Child:
    """`with Child(system, log) as child:` has loaded its model inside the block.

    ready_s: seconds from the start until then.  Everything that it writes goes to `log`.
    """

    def __init__(self, system: System, log: Path) -> None:
        self.system = system
        self.ready_s = 0.0
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Child:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **self.system.environment}
        if self.system.name != "penstock":
            environment.pop("PYTHONPATH", None)
        began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.system.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        try:
            self._answer(began + self.system.start_timeout)
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

    def run(self, prompts: list[list[int]], output_tokens: int, timeout: float) -> Run:
        """Raises ChildFailed; after a timeout the process is of no use any more."""
        process = self._running()
        line = json.dumps({"prompts": prompts, "output_tokens": output_tokens}) + "\n"
        try:
            process.stdin.write(line.encode())  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        except OSError as error:
            raise ChildFailed(f"{self.system.name} has gone: {error}\n{self._tail()}") from error
        return Run(**self._answer(time.monotonic() + timeout))

    def pause(self) -> None:
        """Stops all its processes, where they bear it: an idle engine's threads may spin."""
        if self.system.pausable:
            signal_all(self._tree(), "suspend")

    def resume(self) -> None:
        if self.system.pausable:
            signal_all(self._tree(), "resume")

    def memory(self) -> int:
        """Bytes of all its processes, a shared page counted once (PSS)."""
        size = 0
        for process in self._tree():
            try:
                size += process.memory_full_info().pss
            except psutil.Error:
                pass
        return size

    def stop(self, grace: float = 15.0) -> None:
        """Ends its input, which ends it; kills what is left after `grace` seconds. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        tree = _tree(process)
        signal_all(tree, "resume")
        try:
            process.stdin.close()  # type: ignore[union-attr]
        except OSError:
            pass
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
        kill_all(tree | _tree(process))
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]

    def _answer(self, deadline: float) -> dict[str, Any]:
        process = self._running()
        descriptor = process.stdout.fileno()  # type: ignore[union-attr]
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise ChildFailed(f"{self.system.name} did not answer in time")
            chunk = os.read(descriptor, 65_536)
            if not chunk:
                raise ChildFailed(f"{self.system.name} has ended:\n{self._tail()}")
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

    def _tree(self) -> set[psutil.Process]:
        return _tree(self._running())

    def _tail(self) -> str:
        text = self._log.read_bytes()[-4000:].decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-12:])


def _tree(process: subprocess.Popen[bytes]) -> set[psutil.Process]:
    try:
        top = psutil.Process(process.pid)
        return {top, *top.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()
