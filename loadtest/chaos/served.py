"""A `penstock serve` of our own, whose processes are known by their titles."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

import psutil

TITLE = "penstock: "


class Served:
    """`with Served("--max-model-len", "1024") as served:` is ready inside the block.

    log: the file of what the processes say; None: nobody reads it.
    """

    def __init__(self, *arguments: str, log: Path | None = None) -> None:
        self._arguments = arguments
        self._log = log or Path(os.devnull)
        self.url = ""

    def __enter__(self) -> Served:
        command = [sys.executable, "-m", "penstock", "serve", "--port", "0", *self._arguments]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := re.match(r"Penstock is ready: \S+ on (http://\S+)$", line):
                self.url = match[1]
                threading.Thread(target=self._process.stdout.read, daemon=True).start()
                return self
        raise RuntimeError(f"penstock serve left with {self._process.wait()}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(30)

    def processor_time(self) -> float:
        """Seconds that all processes have computed, those that live now."""
        family = [psutil.Process(self._process.pid)]
        family += family[0].children(recursive=True)
        return sum(sum(process.cpu_times()[:2]) for process in family)

    def pid_of(self, title: str) -> int | None:
        """The pid of `penstock: {title}`, or None while there is none."""
        return self.processes().get(title)

    def processes(self) -> dict[str, int]:
        """The pids of the supervisor's children that live, by title."""
        found = {}
        for child in psutil.Process(self._process.pid).children():
            try:
                title = " ".join(child.cmdline()).strip()
                if child.status() != psutil.STATUS_ZOMBIE and title.startswith(TITLE):
                    found[title.removeprefix(TITLE)] = int(child.pid)
            except psutil.NoSuchProcess:
                continue
        return found
