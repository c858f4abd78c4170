"""The processes of the measurement, as it starts and asks them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from loadtest.report import SetupError

CORES_EACH = 32
"""Engine cores in a process, at most."""
CLIENTS_EACH = 64
"""Front ends in a process, at most."""


def processor_time(pid: int) -> float:
    """Seconds that all threads of a process have computed so far, to the nanosecond."""
    return time.clock_gettime((~pid << 3) | 2)


def pss(pid: int) -> int:
    """Bytes of a process, where a page that several share counts with its part."""
    return int(psutil.Process(pid).memory_full_info().pss)


class Child:
    """A process that answers lines."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as written:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"loadtest.sessions.{module}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
            )
        self._in, self._out = _pipe(self.process.stdin), _pipe(self.process.stdout)

    def ask(self, *words: object) -> None:
        """Sends a line; `answer` has what follows."""
        print(*words, file=self._in, flush=True)

    def line(self) -> str:
        """The next line. Raises SetupError where the process has left."""
        said = self._out.readline()
        if not said:
            raise SetupError(self._log.read_text(errors="replace")[-2000:])
        return said

    def answer(self) -> dict[str, Any]:
        return dict(json.loads(self.line()))

    def end(self) -> None:
        """Kills it, and waits until it is gone."""
        self.process.kill()
        self.process.communicate()


def _pipe(end: IO[str] | None) -> IO[str]:
    if end is None:
        raise SetupError("a process has no pipe")
    return end


def ask_all(children: Sequence[Child], *words: object) -> list[dict[str, Any]]:
    """What all of them answer, at the same time."""
    for child in children:
        child.ask(*words)
    return [child.answer() for child in children]


@contextlib.contextmanager
def front_ends(
    model: Path, endpoints: Sequence[str], count: int, log: Path
) -> Iterator[list[Child]]:
    """Processes with so many front ends together; each dials all endpoints when it is told to."""
    with contextlib.ExitStack() as stack:
        children = []
        for first in range(0, count, CLIENTS_EACH):
            clients = min(CLIENTS_EACH, count - first)
            arguments = [str(model), str(clients), str(len(endpoints)), *endpoints]
            children.append(Child("front_end", arguments, log))
            stack.callback(children[-1].end)
        yield children


@contextlib.contextmanager
def engine_cores(model: Path, folder: Path, count: int, log: Path) -> Iterator[None]:
    """Processes with so many engine cores together, which listen."""
    with contextlib.ExitStack() as stack:
        for first in range(0, count, CORES_EACH):
            cores = min(CORES_EACH, count - first)
            child = Child("engine_cores", [str(model), str(folder), str(first), str(cores)], log)
            stack.callback(child.end)
            child.line()
        yield
