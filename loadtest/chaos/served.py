"""A `penstock serve` of our own, whose processes are known by their titles."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from types import TracebackType

import psutil


class Served:
    """`with Served("--max-model-len", "1024") as served:` is ready inside the block."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.url = ""

    def __enter__(self) -> Served:
        command = [sys.executable, "-m", "penstock", "serve", "--port", "0", *self._arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
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
        for child in psutil.Process(self._process.pid).children():
            try:
                alive = child.status() != psutil.STATUS_ZOMBIE
                if alive and " ".join(child.cmdline()).strip() == f"penstock: {title}":
                    return int(child.pid)
            except psutil.NoSuchProcess:
                continue
        return None
